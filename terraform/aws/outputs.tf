locals {
  config = templatefile("${path.module}/templates/config.toml.tftpl", {
    store_url = "s3://${local.bucket_name}/${var.bucket_prefix}"
    store_options = merge(
      { region = local.region },
      var.endpoint_url == null ? {} : { endpoint = var.endpoint_url, allow_http = "true", virtual_hosted_style_request = "false" },
    )
    region           = local.region
    endpoint_url     = var.endpoint_url
    subnets          = var.subnets
    security_groups  = local.groups
    instance_profile = aws_iam_instance_profile.machines.arn
    job_role_arn     = aws_iam_role.job.arn
    image            = var.image
    launch_template  = local.template
    key_name         = var.key_name
    instance_types   = var.instance_types
    root_volume_gib  = var.root_volume_gib
    queue_url        = aws_sqs_queue.notices.url
    rebalance        = var.rebalance
    placement_scores = var.placement_scores
    tags             = local.tags
    instances_max    = var.instances_max
    budget_usd       = var.budget_usd
  })
}

output "config" {
  description = "The controller's configuration: terraform output -raw config > /etc/spotsurfer/config.toml"
  value       = local.config
  depends_on  = [aws_iam_role_policy_attachment.controller, aws_iam_role_policy.machines, aws_iam_role_policy.job, aws_sqs_queue_policy.notices]
}

output "bucket" {
  description = "Name of the store's bucket."
  value       = aws_s3_bucket.store.id
}

output "queue_url" {
  description = "Where the controller hears of interruptions."
  value       = aws_sqs_queue.notices.url
}

output "controller_role_arn" {
  description = "Role of the controller."
  value       = aws_iam_role.controller.arn
}

output "rights" {
  description = "Each role with what it may do and who may take it, as documents. The role job is always cut down further, for each attempt."
  value = {
    controller = { role = aws_iam_role.controller.arn, policy = aws_iam_policy.controller.policy, trust = aws_iam_role.controller.assume_role_policy }
    machines   = { role = aws_iam_role.machines.arn, policy = aws_iam_role_policy.machines.policy, trust = aws_iam_role.machines.assume_role_policy }
    job        = { role = aws_iam_role.job.arn, policy = aws_iam_role_policy.job.policy, trust = aws_iam_role.job.assume_role_policy }
  }
}

output "controller_instance_id" {
  description = "The controller's machine, if one was made: aws ssm start-session --target ID"
  value       = one([for machine in aws_instance.controller : machine.id])
}

output "efs_mount" {
  description = "Lines of a job file that mount the file system for inputs, if one was made."
  value = var.efs ? join("\n", [
    "[[mounts]]", "name = \"inputs\"", "type = \"nfs4\"",
    "source = \"${aws_efs_file_system.inputs[0].dns_name}:/\"", "target = \"/inputs\"",
    "options = \"nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport\"",
  ]) : null
}
