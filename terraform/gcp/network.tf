# Machines fetch everything themselves: nothing inbound.
locals {
  own = var.subnets == null # the network is the module's own
  subnetworks = local.own ? {
    for region in local.regions : region => { project = var.project, region = region, name = google_compute_subnetwork.machines[region].name }
    } : {
    for path in distinct(values(coalesce(var.subnets, {}))) : path => {
      project = try(regex("^projects/([^/]+)/", path)[0], var.project)
      region  = regex("regions/([^/]+)/", path)[0]
      name    = regex("subnetworks/([^/]+)$", path)[0]
    }
  }
  # As the configuration has it.
  subnets = local.own ? {
    for zone in local.zones : zone => "regions/${local.region_of[zone]}/subnetworks/${local.subnetworks[local.region_of[zone]].name}"
  } : var.subnets
}

resource "google_compute_network" "machines" {
  count                   = local.own ? 1 : 0
  project                 = var.project
  name                    = "${var.name}-machines"
  description             = "spotsurfer machines"
  auto_create_subnetworks = false
  depends_on              = [google_project_service.apis]
}

resource "google_compute_subnetwork" "machines" {
  for_each                 = local.own ? { for number, region in local.regions : region => number } : {}
  project                  = var.project
  name                     = "${var.name}-machines"
  region                   = each.key
  network                  = google_compute_network.machines[0].id
  ip_cidr_range            = cidrsubnet(var.cidr, 4, each.value)
  private_ip_google_access = true # the store, without an address outside
}

# The way out to registries and package indexes, for machines without an address of their own.
resource "google_compute_router" "nat" {
  for_each = var.internet == "nat" ? google_compute_subnetwork.machines : {}
  project  = var.project
  name     = "${var.name}-nat"
  region   = each.key
  network  = google_compute_network.machines[0].id
}

resource "google_compute_router_nat" "nat" {
  for_each                            = google_compute_router.nat
  project                             = var.project
  name                                = "${var.name}-nat"
  router                              = each.value.name
  region                              = each.key
  nat_ip_allocate_option              = "AUTO_ONLY"
  source_subnetwork_ip_ranges_to_nat  = "ALL_SUBNETWORKS_ALL_IP_RANGES"
  enable_dynamic_port_allocation      = true # 64 connections to one server are few for an image of many layers
  enable_endpoint_independent_mapping = false
}

# ---- Firewall: rules for the tag of the machines, which win over those of a network that others made.

# Ports that jobs declare are reached at these of their machine (`spotsurfer_agent/netns.py`), by the controller alone.
locals {
  doors = { from = 20400, to = 20415 }
  ports = { ssh = "22", front = "${local.doors.from}-${local.doors.to}" }
  inbound = {
    for key, rule in {
      ssh       = { port = "ssh", cidrs = var.ssh_cidrs, tags = [], why = "spotsurfer ssh" }
      front     = { port = "front", cidrs = var.front_cidrs, tags = [], why = "Ports of jobs, from a controller elsewhere" }
      own-ssh   = { port = "ssh", cidrs = [], tags = [for machine in local.machine : local.tags.controller if machine.ssh], why = "spotsurfer ssh, from the controller" }
      own-front = { port = "front", cidrs = [], tags = [for machine in local.machine : local.tags.controller], why = "Ports of jobs, from the controller" }
    } : key => rule if length(rule.cidrs) + length(rule.tags) > 0
  }
  guarded         = local.own || var.network != null
  network         = local.own ? one(google_compute_network.machines[*].id) : var.network
  network_project = local.own ? var.project : try(regex("projects/([^/]+)/", var.network)[0], var.project)
}

resource "google_compute_firewall" "nothing" {
  count         = local.guarded ? 1 : 0
  project       = local.network_project
  name          = "${var.name}-nothing-inbound"
  description   = "spotsurfer machines: nothing inbound"
  network       = local.network
  direction     = "INGRESS"
  priority      = 900 # before the usual 1000
  source_ranges = ["0.0.0.0/0"]
  target_tags   = [local.tags.machine]
  deny {
    protocol = "all"
  }
}

resource "google_compute_firewall" "inbound" {
  for_each      = local.guarded ? local.inbound : {}
  project       = local.network_project
  name          = "${var.name}-${each.key}"
  description   = each.value.why
  network       = local.network
  direction     = "INGRESS"
  priority      = 800
  source_ranges = length(each.value.cidrs) > 0 ? each.value.cidrs : null
  source_tags   = length(each.value.tags) > 0 ? each.value.tags : null
  target_tags   = [local.tags.machine]
  allow {
    protocol = "tcp"
    ports    = [local.ports[each.value.port]]
  }
}
