# Three service accounts, without keys.
locals {
  accounts = {
    controller = "orders, watches and ends VMs"
    machine    = "a VM: fetches the agent and its sealed access"
    job        = "the store as jobs see it; the controller cuts its tokens down to one attempt"
  }
  account = { for name, made in google_service_account.this : name => "serviceAccount:${made.email}" }
}

resource "google_service_account" "this" {
  for_each     = local.accounts
  project      = var.project
  account_id   = "${var.name}-${each.key}"
  display_name = "spotsurfer ${each.key}"
  description  = each.value
  depends_on   = [google_project_service.apis]
}

# People, and a controller that runs elsewhere.
resource "google_service_account_iam_member" "people" {
  for_each           = toset(var.controller_members)
  service_account_id = google_service_account.this["controller"].name
  role               = "roles/iam.serviceAccountTokenCreator"
  member             = each.key
}
