# Surfing inside what someone else's Terraform made and goes on owning: subnets and launch template are found by tag, the list
# of types stands in an SSM parameter. Nothing of theirs is changed, so their next plan is as empty as before.
terraform {
  required_version = ">= 1.6"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 5.60"
    }
  }
}

provider "aws" {
  region = var.region
}

variable "region" {
  description = "AWS region."
  type        = string
  default     = "us-east-1"
}

variable "fleet" {
  description = "Value of the tag `fleet` on the subnets and the launch template that exist."
  type        = string
}

variable "types_parameter" {
  description = "SSM parameter (StringList) with the instance types that the fleet's owners allow."
  type        = string
}

variable "image" {
  description = "AMI or public SSM parameter that the fleet's owners use."
  type        = string
}

variable "endpoint_url" {
  description = "For tests: what stands in for AWS."
  type        = string
  default     = null
}

data "aws_caller_identity" "me" {}

# Of an assumed role, the role.
data "aws_iam_session_context" "me" {
  arn = data.aws_caller_identity.me.arn
}

data "aws_subnets" "fleet" {
  filter {
    name   = "tag:fleet"
    values = [var.fleet]
  }
}

data "aws_subnet" "fleet" {
  for_each = toset(data.aws_subnets.fleet.ids)
  id       = each.value
}

data "aws_launch_template" "fleet" {
  filter {
    name   = "tag:fleet"
    values = [var.fleet]
  }
}

data "aws_ssm_parameter" "types" {
  name = var.types_parameter
}

module "spotsurfer" {
  source             = "../.."
  name               = "surf-${var.fleet}"
  vpc_id             = one(toset([for subnet in data.aws_subnet.fleet : subnet.vpc_id]))
  subnets            = { for subnet in data.aws_subnet.fleet : subnet.availability_zone => subnet.id }
  security_group_ids = data.aws_launch_template.fleet.vpc_security_group_ids
  launch_template_id = data.aws_launch_template.fleet.id
  key_name           = data.aws_launch_template.fleet.key_name == "" ? null : data.aws_launch_template.fleet.key_name
  instance_types     = split(",", nonsensitive(data.aws_ssm_parameter.types.value))
  image              = var.image

  controller_principals = [data.aws_iam_session_context.me.issuer_arn]
  endpoint_url          = var.endpoint_url
}

output "config" {
  description = "The controller's configuration."
  value       = module.spotsurfer.config
}
