# Checked with Terraform 1.11 against the schema of Google provider 6.50, and never applied. No provider block: the root module
# chooses project and credentials.
terraform {
  required_version = ">= 1.6"
  required_providers {
    google = {
      source  = "hashicorp/google"
      version = "~> 6.50"
    }
  }
}
