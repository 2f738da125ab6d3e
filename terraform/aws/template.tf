# What every launch has in common; the launch itself says type, zone, market, tags and user-data.
resource "aws_launch_template" "machines" {
  count                  = var.launch_template_id == null ? 1 : 0
  name                   = "${var.name}-machines"
  description            = "spotsurfer machines"
  update_default_version = true
  ebs_optimized          = "true"
  key_name               = var.key_name
  vpc_security_group_ids = local.groups

  iam_instance_profile {
    arn = aws_iam_instance_profile.machines.arn
  }

  # One hop: a job's own network namespace is one further away than the agent.
  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
    instance_metadata_tags      = "disabled"
  }

  monitoring {
    enabled = false # spotsurfer looks for itself; a minute's metrics cost two dollars a machine and month
  }
}
