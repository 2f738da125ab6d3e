# Names and addresses that the other files share.
data "aws_caller_identity" "this" {}
data "aws_partition" "this" {}
data "aws_region" "this" {}

locals {
  account   = data.aws_caller_identity.this.account_id
  partition = data.aws_partition.this.partition
  region    = data.aws_region.this.name
  ec2       = "arn:${local.partition}:ec2:${local.region}:${local.account}"
  root      = "${local.bucket_arn}/${var.bucket_prefix}"

  # By this tag the controller's rights end at its own machines: IAM compares it, and the configuration's `tags` set it on all.
  fleet_tag  = { "spotsurfer-fleet" = var.name }
  tags       = merge(var.tags, local.fleet_tag)
  groups     = var.security_group_ids == null ? [aws_security_group.machines[0].id] : var.security_group_ids
  template   = var.launch_template_id == null ? aws_launch_template.machines[0].id : var.launch_template_id
  image_name = startswith(var.image, "/") ? var.image : null
}
