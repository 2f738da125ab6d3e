# The store: private, rights by IAM alone, no old versions. spotsurfer never changes an object, and what it removed, nobody wants back.
locals {
  own_bucket  = var.existing_bucket == null
  bucket      = local.own_bucket ? google_storage_bucket.store[0].name : data.google_storage_bucket.existing[0].name
  bucket_name = coalesce(var.bucket_name, "${var.project}-${var.name}")
}

resource "google_storage_bucket" "store" {
  count                       = local.own_bucket ? 1 : 0
  project                     = var.project
  name                        = local.bucket_name
  location                    = coalesce(var.bucket_location, local.regions[0])
  force_destroy               = var.bucket_force_destroy
  uniform_bucket_level_access = true # without it no right can end at a prefix
  public_access_prevention    = "enforced"
  labels                      = local.labels
  depends_on                  = [google_project_service.apis]

  soft_delete_policy {
    retention_duration_seconds = 0 # a week of everything that was removed would be paid for
  }
  lifecycle_rule {
    action {
      type = "AbortIncompleteMultipartUpload"
    }
    condition {
      age = 2
    }
  }
  lifecycle_rule {
    action {
      type = "Delete"
    }
    condition {
      age            = 2
      matches_prefix = ["${var.bucket_prefix}/access/"] # of machines long gone
    }
  }
  dynamic "lifecycle_rule" {
    for_each = var.images_expire_days == null ? [] : [var.images_expire_days]
    content {
      action {
        type = "Delete"
      }
      condition {
        age            = lifecycle_rule.value
        matches_prefix = ["${var.bucket_prefix}/jobs/"] # images of jobs long gone
      }
    }
  }
}

data "google_storage_bucket" "existing" {
  count   = local.own_bucket ? 0 : 1
  name    = var.existing_bucket
  project = var.project
  lifecycle {
    postcondition {
      condition     = self.uniform_bucket_level_access
      error_message = "existing_bucket must have uniform bucket-level access: without it no right can end at a prefix."
    }
  }
}
