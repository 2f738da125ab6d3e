# The second witness: what Google notes of machines that it ends. The sink names our VMs only.
locals {
  ends = ["compute.instances.preempted", "compute.instances.terminateOnHostMaintenance", "compute.instances.hostError"]
}

resource "google_pubsub_topic" "preemptions" {
  project    = var.project
  name       = "${var.name}-preemptions"
  labels     = local.labels
  depends_on = [google_project_service.apis]
}

# Older news is in the list of operations anyway. A message that nobody can read is gone by then, so there is no dead-letter topic.
resource "google_pubsub_subscription" "preemptions" {
  project                    = var.project
  name                       = "${var.name}-preemptions"
  topic                      = google_pubsub_topic.preemptions.id
  ack_deadline_seconds       = 30
  message_retention_duration = "600s"
  labels                     = local.labels
  expiration_policy {
    ttl = "" # never: otherwise it is gone after a month without a controller
  }
}

# These entries are written and routed free of charge, and can't be switched off.
resource "google_logging_project_sink" "preemptions" {
  project                = var.project
  name                   = "${var.name}-preemptions"
  description            = "spotsurfer: VMs that Google ends"
  destination            = "pubsub.googleapis.com/${google_pubsub_topic.preemptions.id}"
  unique_writer_identity = true
  depends_on             = [google_project_service.apis]
  filter = join(" AND ", [
    "log_id(\"cloudaudit.googleapis.com/system_event\")",
    "resource.type=\"gce_instance\"",
    "protoPayload.methodName=(${join(" OR ", [for end in local.ends : "\"${end}\""])})",
    "protoPayload.resourceName:\"/instances/${local.vm_prefix}\"",
  ])
}

resource "google_pubsub_topic_iam_member" "sink" {
  project = var.project
  topic   = google_pubsub_topic.preemptions.name
  role    = "roles/pubsub.publisher"
  member  = google_logging_project_sink.preemptions.writer_identity
}
