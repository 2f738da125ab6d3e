# Someone else's Terraform: a network, a launch template and a list of types, made without a thought of spotsurfer.
terraform {
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 5.60"
    }
  }
}

provider "aws" {
  region = "us-east-1"
}

locals {
  tags = { fleet = "genomics" }
}

resource "aws_vpc" "fleet" {
  cidr_block = "10.20.0.0/16"
  tags       = local.tags
}

resource "aws_subnet" "fleet" {
  for_each          = { us-east-1a = 0, us-east-1b = 1 }
  vpc_id            = aws_vpc.fleet.id
  availability_zone = each.key
  cidr_block        = cidrsubnet(aws_vpc.fleet.cidr_block, 8, each.value)
  tags              = local.tags
}

resource "aws_security_group" "fleet" {
  name        = "genomics"
  description = "Workers"
  vpc_id      = aws_vpc.fleet.id
  tags        = local.tags
}

resource "aws_launch_template" "fleet" {
  name                   = "genomics"
  vpc_security_group_ids = [aws_security_group.fleet.id]
  instance_type          = "m5.large"
  tags                   = local.tags
  metadata_options {
    http_tokens = "optional"
  }
}

resource "aws_ssm_parameter" "types" {
  name  = "/genomics/instance-types"
  type  = "StringList"
  value = "m6i.large,m6i.xlarge,c6i.*"
}
