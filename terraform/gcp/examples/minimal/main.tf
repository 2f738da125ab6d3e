# A network of its own in one region, and all defaults: `terraform apply -var project=…`, then
#   terraform output -raw config > spotsurfer.toml
#   export CLOUDSDK_CONFIG=~/.config/gcloud-surf # else Terraform would act as the controller from now on
#   gcloud auth application-default login --impersonate-service-account="$(terraform output -raw controller)"
#   spotsurfer serve --config spotsurfer.toml
terraform {
  required_version = ">= 1.6"
  required_providers {
    google = {
      source  = "hashicorp/google"
      version = "~> 6.50"
    }
  }
}

provider "google" {
  project = var.project
}

variable "project" {
  description = "Id of the project."
  type        = string
}

variable "zones" {
  description = "Zones of the machines."
  type        = list(string)
  default     = ["us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f"]
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

variable "machine_types" {
  description = "Types that may be ordered, with wildcards."
  type        = list(string)
  default     = ["c2d-standard-*", "n2-standard-*", "n2-highmem-*", "n2d-standard-*", "n2d-highmem-*"]
}

variable "bucket_force_destroy" {
  description = "May `terraform destroy` remove the bucket with everything in it?"
  type        = bool
  default     = false
}

data "google_client_openid_userinfo" "me" {}

locals {
  kind = endswith(data.google_client_openid_userinfo.me.email, ".gserviceaccount.com") ? "serviceAccount" : "user"
}

module "spotsurfer" {
  source               = "../.."
  project              = var.project
  zones                = var.zones
  controller_members   = ["${local.kind}:${data.google_client_openid_userinfo.me.email}"]
  instances_max        = var.instances_max
  budget_usd           = var.budget_usd
  machine_types        = var.machine_types
  bucket_force_destroy = var.bucket_force_destroy
}

output "config" {
  description = "The controller's configuration."
  value       = module.spotsurfer.config
}

output "controller" {
  description = "The controller's service account."
  value       = module.spotsurfer.accounts.controller
}

output "rights" {
  description = "What each account may do."
  value       = module.spotsurfer.rights
}
