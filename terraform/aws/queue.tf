# The second witness: what EventBridge says of machines. Rules can't look at tags, so the queue hears of all machines of the
# account's region; the controller drops what is not its own.
locals {
  events = {
    interruption = { source = ["aws.ec2"], detail-type = ["EC2 Spot Instance Interruption Warning"] }
    rebalance    = { source = ["aws.ec2"], detail-type = ["EC2 Instance Rebalance Recommendation"] }
    state = {
      source      = ["aws.ec2"]
      detail-type = ["EC2 Instance State-change Notification"]
      detail      = { state = ["stopping", "stopped", "shutting-down", "terminated"] }
    }
    health = { source = ["aws.health"], detail-type = ["AWS Health Event"], detail = { service = ["EC2"] } }
  }
}

resource "aws_sqs_queue" "notices" {
  name                       = "${var.name}-notices"
  message_retention_seconds  = 3600 # older news is in the listing anyway
  visibility_timeout_seconds = 30
  receive_wait_time_seconds  = 0
  sqs_managed_sse_enabled    = true
  tags                       = local.tags
}

resource "aws_sqs_queue_redrive_policy" "notices" {
  queue_url      = aws_sqs_queue.notices.id
  redrive_policy = jsonencode({ deadLetterTargetArn = aws_sqs_queue.unread.arn, maxReceiveCount = 5 })
}

resource "aws_sqs_queue" "unread" {
  name                      = "${var.name}-notices-unread" # what could not be read five times, for a person to look at
  message_retention_seconds = 1209600
  sqs_managed_sse_enabled   = true
  tags                      = local.tags
}

resource "aws_cloudwatch_event_rule" "notices" {
  for_each      = local.events
  name          = "${var.name}-${each.key}"
  description   = "spotsurfer: ${each.value.detail-type[0]}"
  event_pattern = jsonencode(each.value)
  tags          = local.tags
}

resource "aws_cloudwatch_event_target" "notices" {
  for_each  = local.events
  rule      = aws_cloudwatch_event_rule.notices[each.key].name
  target_id = "notices"
  arn       = aws_sqs_queue.notices.arn
}

resource "aws_sqs_queue_policy" "notices" {
  queue_url  = aws_sqs_queue.notices.id
  depends_on = [aws_sqs_queue_redrive_policy.notices] # one change of a queue's attributes at a time
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "OurRules"
        Effect    = "Allow"
        Principal = { Service = "events.amazonaws.com" }
        Action    = "sqs:SendMessage"
        Resource  = aws_sqs_queue.notices.arn
        Condition = { ArnEquals = { "aws:SourceArn" = [for rule in aws_cloudwatch_event_rule.notices : rule.arn] } }
      },
      {
        Sid       = "TlsOnly"
        Effect    = "Deny"
        Principal = "*"
        Action    = "sqs:*"
        Resource  = aws_sqs_queue.notices.arn
        Condition = { Bool = { "aws:SecureTransport" = "false" } }
      },
    ]
  })
}
