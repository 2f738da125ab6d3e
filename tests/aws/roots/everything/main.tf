# The module with all that is optional.
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

variable "image" {
  type = string
}

resource "aws_vpc" "lab" {
  cidr_block = "10.30.0.0/16"
}

resource "aws_subnet" "lab" {
  vpc_id            = aws_vpc.lab.id
  availability_zone = "us-east-1a"
  cidr_block        = "10.30.0.0/24"
}

module "spotsurfer" {
  source               = "../../../../terraform/aws"
  name                 = "lab"
  vpc_id               = aws_vpc.lab.id
  subnets              = { us-east-1a = aws_subnet.lab.id }
  route_table_ids      = [aws_vpc.lab.main_route_table_id]
  image                = var.image
  ssh_cidrs            = ["203.0.113.0/24"]
  front_cidrs          = ["203.0.113.7/32"]
  efs                  = true
  images_expire_days   = 90
  input_bucket_arns    = ["arn:aws:s3:::lab-reads"]
  secret_arns          = ["arn:aws:secretsmanager:us-east-1:123456789012:secret:lab-*"]
  placement_scores     = true
  controller_machine   = { subnet_id = aws_subnet.lab.id, package = "https://example.org/spotsurfer.whl" }
  bucket_force_destroy = true
}

output "config" {
  value = module.spotsurfer.config
}

output "controller_instance_id" {
  value = module.spotsurfer.controller_instance_id
}

output "efs_mount" {
  value = module.spotsurfer.efs_mount
}
