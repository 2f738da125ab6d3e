# Surfing inside a network that someone else's Terraform made and goes on owning: subnetworks are found by name. Nothing of theirs is
# changed but who may use the subnetworks; the firewall rules hold for spotsurfer's machines alone.
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

variable "network" {
  description = "Name of the network."
  type        = string
}

variable "subnetworks" {
  description = "Region -> name of its subnetwork."
  type        = map(string)
}

variable "zones" {
  description = "Zones of the machines, each in one of these regions."
  type        = list(string)
}

variable "bucket" {
  description = "A bucket that exists; null: one is made."
  type        = string
  default     = null
}

variable "controller_members" {
  description = "Who may act as the controller's account, like user:ada@example.org."
  type        = list(string)
}

data "google_compute_subnetwork" "theirs" {
  for_each = var.subnetworks
  name     = each.value
  region   = each.key
  lifecycle {
    postcondition {
      condition     = self.private_ip_google_access
      error_message = "The subnetwork needs Private Google Access: machines without an address outside reach the store by it."
    }
  }
}

locals {
  region_of = { for zone in var.zones : zone => regex("^(.+)-[a-z0-9]+$", zone)[0] }
}

module "spotsurfer" {
  source             = "../.."
  project            = var.project
  network            = var.network
  subnets            = { for zone, region in local.region_of : zone => "regions/${region}/subnetworks/${data.google_compute_subnetwork.theirs[region].name}" }
  existing_bucket    = var.bucket
  controller_members = var.controller_members
}

output "config" {
  description = "The controller's configuration."
  value       = module.spotsurfer.config
}
