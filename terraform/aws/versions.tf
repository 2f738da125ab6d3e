# Tried with Terraform 1.11 and AWS provider 5.100. No provider block: the root module chooses region and credentials.
terraform {
  required_version = ">= 1.6"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 5.60"
    }
  }
}
