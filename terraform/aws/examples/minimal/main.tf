# The default VPC of one region, and all defaults: `terraform apply`, then
#   terraform output -raw config > spotsurfer.toml && spotsurfer serve --config spotsurfer.toml
# with credentials that may take the controller's role (controller_principals) or have its policy.
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

variable "instances_max" {
  description = "Machines at a time."
  type        = number
  default     = 4
}

variable "budget_usd" {
  description = "Jobs are held before this is passed."
  type        = number
  default     = 10
}

variable "image" {
  description = "AMI or SSM parameter; null: the module's default."
  type        = string
  default     = "/aws/service/debian/release/12/latest/amd64"
}

variable "instance_types" {
  description = "Types that may be launched, with wildcards; IAM allows no others."
  type        = list(string)
  default     = ["c5.*", "c6i.*", "c7i.*", "m5.*", "m6i.*", "m7i.*", "r5.*", "r6i.*", "r7i.*"]
}

variable "rebalance" {
  description = "What a rebalance recommendation leads to: ignore, checkpoint or move."
  type        = string
  default     = "checkpoint"
}

variable "bucket_force_destroy" {
  description = "May `terraform destroy` remove the bucket with everything in it?"
  type        = bool
  default     = false
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

data "aws_vpc" "default" {
  default = true
}

data "aws_subnets" "default" {
  filter {
    name   = "vpc-id"
    values = [data.aws_vpc.default.id]
  }
  filter {
    name   = "default-for-az"
    values = ["true"]
  }
}

data "aws_subnet" "default" {
  for_each = toset(data.aws_subnets.default.ids)
  id       = each.value
}

data "aws_route_tables" "default" {
  vpc_id = data.aws_vpc.default.id
}

module "spotsurfer" {
  source                = "../.."
  vpc_id                = data.aws_vpc.default.id
  subnets               = { for subnet in data.aws_subnet.default : subnet.availability_zone => subnet.id }
  route_table_ids       = data.aws_route_tables.default.ids
  controller_principals = [data.aws_iam_session_context.me.issuer_arn]
  instances_max         = var.instances_max
  budget_usd            = var.budget_usd
  image                 = var.image
  instance_types        = var.instance_types
  rebalance             = var.rebalance
  bucket_force_destroy  = var.bucket_force_destroy
  endpoint_url          = var.endpoint_url
}

output "config" {
  description = "The controller's configuration."
  value       = module.spotsurfer.config
}

output "rights" {
  description = "Roles and their documents."
  value       = module.spotsurfer.rights
}
