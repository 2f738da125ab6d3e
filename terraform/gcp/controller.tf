# The optional controller machine. Its database and the master of all checkpoints' keys lie on a disk of their own, which
# outlives the machine: whoever loses it loses the checkpoints. Its name must not begin like those of our VMs: it may end them.
locals {
  templates = "${path.module}/../templates" # of all clouds
  service = {
    command = "/opt/spotsurfer/bin/spotsurfer"
    config  = "/etc/spotsurfer/config.toml"
    data    = "/var/lib/spotsurfer-controller"
  }
}

resource "google_compute_disk" "controller" {
  for_each   = local.machine
  project    = var.project
  name       = "${var.name}-controller-data"
  zone       = each.value.zone
  size       = each.value.data_gib
  type       = "pd-balanced"
  labels     = local.labels
  depends_on = [google_project_service.apis]
}

resource "google_compute_instance" "controller" {
  for_each     = local.machine
  project      = var.project
  name         = "${var.name}-controller"
  zone         = each.value.zone
  machine_type = each.value.machine_type
  tags         = [local.tags.controller]
  labels       = local.labels
  # Another machine type takes a stop.
  allow_stopping_for_update = true

  boot_disk {
    initialize_params {
      image = each.value.image
      size  = 16
      type  = "pd-balanced"
    }
  }
  attached_disk {
    source      = google_compute_disk.controller[each.key].id
    device_name = "spotsurfer-data"
  }
  network_interface {
    subnetwork = local.subnets[each.value.zone]
    dynamic "access_config" {
      for_each = var.internet == "address" ? [1] : []
      content {}
    }
  }
  service_account {
    email  = google_service_account.this["controller"].email
    scopes = ["https://www.googleapis.com/auth/cloud-platform"] # what it may do, its roles say
  }
  shielded_instance_config {
    enable_secure_boot          = true
    enable_vtpm                 = true
    enable_integrity_monitoring = true
  }
  metadata = {
    block-project-ssh-keys = "TRUE"
    enable-oslogin         = "TRUE"
    serial-port-enable     = "FALSE"
  }
  # It is read until it has run to its end once, so another configuration takes another machine.
  metadata_startup_script = templatefile("${local.templates}/controller.sh.tftpl", {
    config       = local.config
    package      = each.value.package
    extras       = "gcp,ssh"
    disk         = "/dev/disk/by-id/google-spotsurfer-data"
    unit         = templatefile("${local.templates}/spotsurfer.service.tftpl", local.service)
    unprivileged = templatefile("${local.templates}/unprivileged.conf.tftpl", local.service)
  })
  lifecycle {
    ignore_changes = [boot_disk[0].initialize_params[0].image] # a newer image is no reason to replace a controller
    precondition {
      condition     = contains(keys(local.subnets), each.value.zone)
      error_message = "controller_machine.zone must be one of the zones of the machines."
    }
    precondition {
      condition     = !local.own || var.internet != "none"
      error_message = "The controller's machine fetches packages: internet must be nat or address."
    }
  }
}

# People reach it by `gcloud compute ssh --tunnel-through-iap`: these are the addresses of Google's Identity-Aware Proxy, which lets in
# whom IAM lets. Of a network that others made, they may have such a rule already.
resource "google_compute_firewall" "controller" {
  for_each      = local.guarded ? local.machine : {}
  project       = local.network_project
  name          = "${var.name}-controller"
  description   = "spotsurfer controller: SSH through Identity-Aware Proxy"
  network       = local.network
  direction     = "INGRESS"
  priority      = 800
  source_ranges = ["35.235.240.0/20"]
  target_tags   = [local.tags.controller]
  allow {
    protocol = "tcp"
    ports    = ["22"]
  }
}

resource "google_compute_firewall" "controller_nothing" {
  for_each      = local.guarded ? local.machine : {}
  project       = local.network_project
  name          = "${var.name}-controller-nothing-inbound"
  description   = "spotsurfer controller: nothing else inbound"
  network       = local.network
  direction     = "INGRESS"
  priority      = 900
  source_ranges = ["0.0.0.0/0"]
  target_tags   = [local.tags.controller]
  deny {
    protocol = "all"
  }
}
