# Names that the other files share.
locals {
  labels     = merge(var.labels, { spotsurfer-fleet = var.name }) # for people and bills: IAM can't look at labels
  zones      = var.subnets == null ? var.zones : keys(var.subnets)
  region_of  = { for zone in local.zones : zone => regex("^(.+)-[a-z0-9]+$", zone)[0] }
  regions    = distinct([for zone in local.zones : local.region_of[zone]]) # in the order of the zones: see cidr
  store      = "projects/_/buckets/${local.bucket}/objects/${var.bucket_prefix}"
  machine    = var.controller_machine == null ? {} : { this = var.controller_machine }
  tags       = { machine = "${var.name}-machine", controller = "${var.name}-controller" }
  image_home = regex("^projects/([^/]+)/", var.image)[0]
}

# What the controller calls, and what makes all this. Left on at the end: others may use them.
resource "google_project_service" "apis" {
  for_each = var.enable_apis ? toset(concat(
    ["cloudresourcemanager", "compute", "iam", "iamcredentials", "logging", "pubsub", "storage", "sts"],
    [for machine in local.machine : "iap"],
    length(var.secrets) == 0 ? [] : ["secretmanager"],
  )) : toset([])
  project            = var.project
  service            = "${each.key}.googleapis.com"
  disable_on_destroy = false
}
