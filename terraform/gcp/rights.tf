# Who may do what, and where that ends.
locals {
  # Our VMs and their disks are named so by the provider. A role that is bound like this can do nothing else to any resource.
  vm_prefix = "ss-"
  only_ours = join(" || ", [for kind in ["instances", "disks"] : "resource.name.extract(\"/${kind}/{name}\").startsWith(\"${local.vm_prefix}\")"])

  below = { for folder in ["", "access/", "jobs/", "live/", "runtime/"] : folder => "resource.name.startsWith(\"${local.store}/${folder}\")" }

  # Of the project: account, role, and on which resources.
  project_rights = merge(
    {
      vms  = { account = "controller", role = "vms", condition = { title = "VMs of spotsurfer", expression = local.only_ours } }
      look = { account = "controller", role = "look", condition = null } # Google lists all or nothing
    },
    local.image_home == var.project ? { images = { account = "controller", role = "images", condition = null } } : {},
  )

  # Of the bucket. Names of keys can be listed by controller and jobs, because Google says 404 for an object that is not there only
  # to who may list; others hear 403, which would look like a lost right. An upload in parts needs the right to make the object, too.
  store_rights = {
    controller        = { account = "controller", role = "objects", condition = { title = "Store", expression = local.below[""] } }
    controller_bucket = { account = "controller", role = "bucket", condition = null }
    machine           = { account = "machine", role = "fetch", condition = { title = "Agent and access", expression = "${local.below["runtime/"]} || ${local.below["access/"]}" } }
    job               = { account = "job", role = "objects", condition = { title = "Jobs", expression = "${local.below["jobs/"]} || ${local.below["live/"]}" } }
    job_bucket        = { account = "job", role = "bucket", condition = null }
  }

  # Of other service accounts: the controller starts VMs that run as one of them, and takes tokens of the other.
  account_rights = {
    machine = { account = "controller", role = "run_as" }
    job     = { account = "controller", role = "tokens" }
  }
}

resource "google_project_iam_member" "rights" {
  for_each = local.project_rights
  project  = var.project
  role     = local.role[each.value.role]
  member   = local.account[each.value.account]
  dynamic "condition" {
    for_each = each.value.condition == null ? [] : [each.value.condition]
    content {
      title      = condition.value.title
      expression = condition.value.expression
    }
  }
}

resource "google_storage_bucket_iam_member" "rights" {
  for_each = local.store_rights
  bucket   = local.bucket
  role     = local.role[each.value.role]
  member   = local.account[each.value.account]
  dynamic "condition" {
    for_each = each.value.condition == null ? [] : [each.value.condition]
    content {
      title      = condition.value.title
      expression = condition.value.expression
    }
  }
}

resource "google_service_account_iam_member" "rights" {
  for_each           = local.account_rights
  service_account_id = google_service_account.this[each.key].name
  role               = local.role[each.value.role]
  member             = local.account[each.value.account]
}

resource "google_pubsub_subscription_iam_member" "rights" {
  project      = var.project
  subscription = google_pubsub_subscription.preemptions.name
  role         = local.role["notices"]
  member       = local.account["controller"]
}

# A role of one project can't be given in another: a subnetwork of a host project gets Google's own role, which has both.
resource "google_compute_subnetwork_iam_member" "use" {
  for_each   = local.subnetworks
  project    = each.value.project
  region     = each.value.region
  subnetwork = each.value.name
  role       = each.value.project == var.project ? local.role["subnets"] : "roles/compute.networkUser"
  member     = local.account["controller"]
}

resource "google_compute_subnetwork_iam_member" "address" {
  for_each   = var.internet == "address" ? { for key, found in local.subnetworks : key => found if found.project == var.project } : {}
  project    = each.value.project
  region     = each.value.region
  subnetwork = each.value.name
  role       = local.role["addresses"]
  member     = local.account["controller"]
}

# What jobs read besides the store.
resource "google_storage_bucket_iam_member" "inputs" {
  for_each = toset(var.input_buckets)
  bucket   = each.key
  role     = local.role["inputs"]
  member   = local.account["job"]
}

resource "google_secret_manager_secret_iam_member" "secrets" {
  for_each  = { for secret in var.secrets : secret => regex("^projects/([^/]+)/secrets/(.+)$", secret) }
  project   = each.value[0]
  secret_id = each.value[1]
  role      = each.value[0] == var.project ? local.role["secrets"] : "roles/secretmanager.secretAccessor"
  member    = local.account["controller"]
}
