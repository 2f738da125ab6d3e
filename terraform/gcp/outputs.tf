locals {
  config = templatefile("${path.module}/templates/config.toml.tftpl", {
    store_url        = "gs://${local.bucket}/${var.bucket_prefix}"
    project          = var.project
    subnets          = local.subnets
    machine_account  = google_service_account.this["machine"].email
    job_account      = google_service_account.this["job"].email
    preemptions      = google_pubsub_subscription.preemptions.id
    image            = var.image
    machine_types    = var.machine_types
    disk_gib         = var.disk_gib
    external_address = var.internet == "address"
    network_tags     = [local.tags.machine]
    labels           = local.labels
    instances_max    = var.instances_max
    budget_usd       = var.budget_usd
  })
}

output "config" {
  description = "The controller's configuration: terraform output -raw config > /etc/spotsurfer/config.toml"
  value       = local.config
  depends_on = [
    google_project_iam_member.rights, google_storage_bucket_iam_member.rights, google_service_account_iam_member.rights,
    google_pubsub_subscription_iam_member.rights, google_pubsub_topic_iam_member.sink, google_compute_subnetwork_iam_member.use,
  ]
}

output "bucket" {
  description = "Name of the store's bucket."
  value       = local.bucket
}

output "preemptions" {
  description = "Subscription by which the controller hears of VMs that Google ends."
  value       = google_pubsub_subscription.preemptions.id
}

output "accounts" {
  description = "E-mail addresses of the service accounts: controller, machine, job. A controller elsewhere takes the first one: gcloud auth application-default login --impersonate-service-account=…"
  value       = { for name, made in google_service_account.this : name => made.email }
}

output "rights" {
  description = "What each account may do, on which resources: its permissions, and the condition that limits them. The account job is always cut down further, for each attempt."
  value = {
    project  = [for right in local.project_rights : merge(right, { permissions = local.permissions[right.role] })]
    bucket   = [for right in local.store_rights : merge(right, { permissions = local.permissions[right.role] })]
    notices  = { account = "controller", role = "notices", permissions = local.permissions["notices"] }
    subnets  = { account = "controller", permissions = concat(local.permissions["subnets"], var.internet == "address" ? local.permissions["addresses"] : []) }
    accounts = { for on, right in local.account_rights : on => merge(right, { permissions = local.permissions[right.role] }) }
  }
}

output "controller_machine" {
  description = "How to reach the controller's machine, if one was made."
  value       = one([for machine in google_compute_instance.controller : "gcloud compute ssh ${machine.name} --project ${var.project} --zone ${machine.zone} --tunnel-through-iap"])
}
