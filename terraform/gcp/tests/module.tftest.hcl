# Logic of the module without Google: `terraform test` (Terraform 1.7 or newer).
mock_provider "google" {
  mock_resource "google_compute_network" {
    defaults = { id = "projects/lab-123456/global/networks/spotsurfer-machines" }
  }
  mock_resource "google_pubsub_topic" {
    defaults = { id = "projects/lab-123456/topics/spotsurfer-preemptions" }
  }
  mock_resource "google_pubsub_subscription" {
    defaults = { id = "projects/lab-123456/subscriptions/spotsurfer-preemptions" }
  }
  mock_resource "google_project_iam_custom_role" {
    defaults = { name = "projects/lab-123456/roles/made" }
  }
  mock_data "google_storage_bucket" {
    defaults = { uniform_bucket_level_access = true }
  }
  override_resource {
    target = google_service_account.this["controller"]
    values = { email = "spotsurfer-controller@lab-123456.iam.gserviceaccount.com", name = "projects/lab-123456/serviceAccounts/spotsurfer-controller@lab-123456.iam.gserviceaccount.com" }
  }
  override_resource {
    target = google_service_account.this["machine"]
    values = { email = "spotsurfer-machine@lab-123456.iam.gserviceaccount.com", name = "projects/lab-123456/serviceAccounts/spotsurfer-machine@lab-123456.iam.gserviceaccount.com" }
  }
  override_resource {
    target = google_service_account.this["job"]
    values = { email = "spotsurfer-job@lab-123456.iam.gserviceaccount.com", name = "projects/lab-123456/serviceAccounts/spotsurfer-job@lab-123456.iam.gserviceaccount.com" }
  }
}

variables {
  project = "lab-123456"
}

run "defaults" {
  assert {
    condition     = length(google_compute_firewall.inbound) == 0 && length(google_compute_instance.controller) == 0 && length(google_compute_firewall.controller) == 0
    error_message = "nothing optional is made unless it is asked for, and nothing is open"
  }
  assert {
    condition     = one(google_compute_firewall.nothing[0].deny).protocol == "all" && one(google_compute_firewall.nothing[0].source_ranges) == "0.0.0.0/0" && one(google_compute_firewall.nothing[0].target_tags) == "spotsurfer-machine"
    error_message = "nothing inbound"
  }
  assert {
    condition     = keys(google_compute_subnetwork.machines) == ["us-central1"] && google_compute_subnetwork.machines["us-central1"].private_ip_google_access && google_compute_subnetwork.machines["us-central1"].ip_cidr_range == "10.70.0.0/20"
    error_message = "one subnetwork a region, from which the store is reached"
  }
  assert {
    condition     = length(google_compute_router_nat.nat) == 1
    error_message = "a way out"
  }
  assert {
    condition     = google_storage_bucket.store[0].name == "lab-123456-spotsurfer" && google_storage_bucket.store[0].location == "us-central1" && !google_storage_bucket.store[0].force_destroy
    error_message = "the bucket's name and place, and that it is kept"
  }
  assert {
    condition     = length(google_storage_bucket.store[0].lifecycle_rule) == 2 && one(google_storage_bucket.store[0].soft_delete_policy).retention_duration_seconds == 0
    error_message = "only uploads that failed and old access are removed, and nothing removed is kept"
  }
  assert {
    condition     = google_pubsub_subscription.preemptions.message_retention_duration == "600s" && one(google_pubsub_subscription.preemptions.expiration_policy).ttl == ""
    error_message = "news is short-lived, the subscription is not"
  }
  assert {
    condition     = strcontains(google_logging_project_sink.preemptions.filter, "protoPayload.methodName=(\"compute.instances.preempted\" OR ") && strcontains(google_logging_project_sink.preemptions.filter, "protoPayload.resourceName:\"/instances/ss-\"")
    error_message = "preemptions of our VMs"
  }
  assert {
    condition     = google_project_iam_member.rights["vms"].condition[0].expression == "resource.name.extract(\"/instances/{name}\").startsWith(\"ss-\") || resource.name.extract(\"/disks/{name}\").startsWith(\"ss-\")"
    error_message = "the controller's rights end at VMs that are named as ours are"
  }
  assert {
    condition     = google_storage_bucket_iam_member.rights["machine"].condition[0].expression == "resource.name.startsWith(\"projects/_/buckets/lab-123456-spotsurfer/objects/store/runtime/\") || resource.name.startsWith(\"projects/_/buckets/lab-123456-spotsurfer/objects/store/access/\")"
    error_message = "a machine reads the agent and its access"
  }
  assert {
    condition     = google_storage_bucket_iam_member.rights["job"].condition[0].expression == "resource.name.startsWith(\"projects/_/buckets/lab-123456-spotsurfer/objects/store/jobs/\") || resource.name.startsWith(\"projects/_/buckets/lab-123456-spotsurfer/objects/store/live/\")"
    error_message = "jobs see jobs"
  }
  assert {
    condition     = google_storage_bucket_iam_member.rights["controller"].condition[0].expression == "resource.name.startsWith(\"projects/_/buckets/lab-123456-spotsurfer/objects/store/\")"
    error_message = "the controller has the store and nothing beside it"
  }
  assert {
    condition     = length(google_service_account_iam_member.people) == 0 && length(google_project_iam_member.rights) == 2
    error_message = "nobody but its machine takes the controller's account unless named, and images of others need no right"
  }
  assert {
    condition     = length(google_compute_subnetwork_iam_member.use) == 1 && length(google_compute_subnetwork_iam_member.address) == 0
    error_message = "the subnetwork that is used"
  }
  assert {
    condition     = strcontains(output.config, "us-central1-f = \"regions/us-central1/subnetworks/spotsurfer-machines\"") && strcontains(output.config, "external_address = false") && !strcontains(output.config, "budget_usd")
    error_message = "the configuration"
  }
}

run "everything" {
  variables {
    name               = "lab"
    zones              = ["europe-west4-a", "us-east1-b", "europe-west4-b"]
    internet           = "address"
    ssh_cidrs          = ["203.0.113.0/24"]
    front_cidrs        = ["203.0.113.7/32"]
    images_expire_days = 90
    budget_usd         = 12.5
    image              = "projects/lab-123456/global/images/family/machines"
    input_buckets      = ["lab-reads"]
    secrets            = ["projects/lab-123456/secrets/token", "projects/other-123456/secrets/theirs"]
    controller_members = ["user:ada@example.org"]
    labels             = { team = "genomics" }
    controller_machine = { zone = "us-east1-b", package = "https://example.org/spotsurfer.whl", ssh = true }
  }
  assert {
    condition     = google_compute_subnetwork.machines["europe-west4"].ip_cidr_range == "10.70.0.0/20" && google_compute_subnetwork.machines["us-east1"].ip_cidr_range == "10.70.16.0/20"
    error_message = "regions get addresses in the order of their zones"
  }
  assert {
    condition     = length(google_compute_router_nat.nat) == 0 && length(google_compute_subnetwork_iam_member.address) == 2
    error_message = "an address for each machine, and the right to it"
  }
  assert {
    condition     = keys(google_compute_firewall.inbound) == ["front", "own-front", "own-ssh", "ssh"] && alltrue([for rule in google_compute_firewall.inbound : rule.priority < google_compute_firewall.nothing[0].priority])
    error_message = "what was asked for is open, whatever is not"
  }
  assert {
    condition     = one(one(google_compute_firewall.inbound["front"].allow).ports) == "20400-20415" && one(google_compute_firewall.inbound["own-front"].source_tags) == one(google_compute_instance.controller["this"].tags)
    error_message = "the front reaches ports of jobs, from both controllers"
  }
  assert {
    condition     = one(google_compute_firewall.controller["this"].source_ranges) == "35.235.240.0/20" && one(google_compute_firewall.controller_nothing["this"].target_tags) == one(google_compute_instance.controller["this"].tags)
    error_message = "the controller's machine is reached through Identity-Aware Proxy alone"
  }
  assert {
    condition     = strcontains(google_compute_instance.controller["this"].metadata_startup_script, "subnetworks/lab-machines") && strcontains(google_compute_instance.controller["this"].metadata_startup_script, "budget_usd = \"12.5\"") && strcontains(google_compute_instance.controller["this"].metadata_startup_script, "https://example.org/spotsurfer.whl[gcp,ssh]")
    error_message = "the machine's configuration is the one of the output"
  }
  assert {
    condition     = !startswith(google_compute_instance.controller["this"].name, local.vm_prefix) && !startswith(google_compute_disk.controller["this"].name, local.vm_prefix)
    error_message = "the controller may not be able to end itself"
  }
  assert {
    condition     = google_project_iam_member.rights["images"].role == google_project_iam_custom_role.this["images"].name
    error_message = "the project's own images need a right"
  }
  assert {
    condition     = google_secret_manager_secret_iam_member.secrets["projects/lab-123456/secrets/token"].role == google_project_iam_custom_role.this["secrets"].name && google_secret_manager_secret_iam_member.secrets["projects/other-123456/secrets/theirs"].role == "roles/secretmanager.secretAccessor"
    error_message = "a role of one project can't be given in another"
  }
  assert {
    condition     = length(google_storage_bucket.store[0].lifecycle_rule) == 3 && contains(keys(google_project_service.apis), "secretmanager")
    error_message = "old images are removed if asked for, and the service is on"
  }
}

run "of_others" {
  command = plan
  variables {
    enable_apis     = false
    existing_bucket = "lab-data"
    network         = "projects/host-123456/global/networks/lab"
    subnets = {
      us-central1-a = "projects/host-123456/regions/us-central1/subnetworks/lab"
      us-central1-b = "projects/host-123456/regions/us-central1/subnetworks/lab"
      us-east1-b    = "regions/us-east1/subnetworks/lab"
    }
    internet    = "address"
    front_cidrs = ["203.0.113.7/32"]
  }
  assert {
    condition     = length(google_storage_bucket.store) + length(google_compute_network.machines) + length(google_compute_subnetwork.machines) + length(google_compute_router.nat) + length(google_project_service.apis) == 0
    error_message = "what exists is not made again"
  }
  assert {
    condition     = google_compute_firewall.inbound["front"].project == "host-123456" && google_compute_firewall.nothing[0].network == "projects/host-123456/global/networks/lab"
    error_message = "rules are the network's"
  }
  assert {
    condition     = google_compute_subnetwork_iam_member.use["projects/host-123456/regions/us-central1/subnetworks/lab"].role == "roles/compute.networkUser" && google_compute_subnetwork_iam_member.use["projects/host-123456/regions/us-central1/subnetworks/lab"].project == "host-123456"
    error_message = "a host project's subnetwork takes no role of ours"
  }
  assert {
    condition     = keys(google_compute_subnetwork_iam_member.address) == ["regions/us-east1/subnetworks/lab"]
    error_message = "networkUser has the right to addresses"
  }
}

run "of_others_who_see_to_it" {
  command = plan
  variables {
    subnets     = { us-east1-b = "regions/us-east1/subnetworks/lab" }
    front_cidrs = ["203.0.113.7/32"]
  }
  assert {
    condition     = length(google_compute_firewall.nothing) + length(google_compute_firewall.inbound) == 0
    error_message = "no rules in a network that was not named"
  }
}

run "bucket_without_uniform_access" {
  command = plan
  variables {
    existing_bucket = "lab-data"
  }
  override_data {
    target = data.google_storage_bucket.existing[0]
    values = { uniform_bucket_level_access = false }
  }
  expect_failures = [data.google_storage_bucket.existing]
}

run "controller_elsewhere" {
  command = plan
  variables {
    internet           = "none"
    controller_machine = { zone = "us-central1-a", package = "spotsurfer" }
  }
  expect_failures = [google_compute_instance.controller]
}

run "wrong_values" {
  command = plan
  variables {
    project            = "Lab"
    name               = "ss-lab"
    zones              = ["us-central1"]
    cidr               = "10.0.0.0/28"
    subnets            = { us-central1-a = "regions/us-east1/subnetworks/lab" }
    internet           = "all"
    machine_types      = ["n2 standard"]
    image              = "debian-12"
    disk_gib           = 5
    ssh_cidrs          = ["0.0.0.0/0"]
    front_cidrs        = ["everywhere"]
    bucket_prefix      = "/store/"
    images_expire_days = 7
    secrets            = ["token"]
    controller_members = ["ada@example.org"]
    instances_max      = 0
    labels             = { Team = "x" }
    controller_machine = { zone = "us-central1-a", package = "a; rm -rf /" }
  }
  expect_failures = [
    var.project, var.name, var.zones, var.cidr, var.subnets, var.internet, var.machine_types, var.image, var.disk_gib, var.ssh_cidrs,
    var.front_cidrs, var.bucket_prefix, var.images_expire_days, var.secrets, var.controller_members, var.instances_max, var.labels,
    var.controller_machine,
  ]
}
