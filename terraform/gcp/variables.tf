variable "project" {
  description = "Id of the project. Give each controller a project of its own: IAM knows VMs by their names alone, and those of all controllers begin alike."
  type        = string
  validation {
    condition     = can(regex("^([a-z][a-z0-9.-]{0,61}[a-z0-9]:)?[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project))
    error_message = "project must be the id of a project, like my-project-123456."
  }
}

variable "name" {
  description = "Begins the names of all resources but VMs, and is the label spotsurfer-fleet."
  type        = string
  default     = "spotsurfer"
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,18}$", var.name)) && !startswith(var.name, "ss-")
    error_message = "name must be 2 to 19 lower-case letters, digits and hyphens, begin with a letter, and not with ss-, as the names of VMs do."
  }
}

variable "enable_apis" {
  description = "Turn on the services that are called (Compute Engine, IAM, Pub/Sub …)? They stay on after `terraform destroy`."
  type        = bool
  default     = true
}

variable "zones" {
  description = "Where machines may run, in a network that is made, with a subnetwork for each region. More zones mean more pools to choose from. Of no account if `subnets` is given."
  type        = list(string)
  default     = ["us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f"]
  validation {
    condition     = length(var.zones) > 0 && alltrue([for zone in var.zones : can(regex("^[a-z]+(-[a-z]+)+[0-9]+-[a-z0-9]+$", zone))])
    error_message = "zones must hold at least one zone, like us-central1-a."
  }
  validation {
    condition     = length(distinct([for zone in var.zones : replace(zone, "/-[a-z0-9]+$/", "")])) <= 16
    error_message = "zones may be of 16 regions at most: cidr is divided by so many."
  }
}

variable "cidr" {
  description = "Addresses of the network that is made. Each region gets a sixteenth, in the order in which `zones` names them: add new regions at the end, or subnetworks are replaced."
  type        = string
  default     = "10.70.0.0/16"
  validation {
    condition     = can(cidrsubnet(var.cidr, 4, 15)) && try(tonumber(split("/", var.cidr)[1]) <= 24, false)
    error_message = "cidr must be a range of at least 256 addresses, like 10.70.0.0/16."
  }
}

variable "subnets" {
  description = "Subnetworks that exist already: zone -> regions/R/subnetworks/S, with projects/P/ before it for one of a host project (Shared VPC). They need Private Google Access, or machines with an address outside. null: a network is made."
  type        = map(string)
  default     = null
  validation {
    condition = var.subnets == null || try(length(var.subnets) > 0 && alltrue([
      for zone, path in var.subnets : can(regex("^(projects/[^/]+/)?regions/${regex("^(.+)-[a-z0-9]+$", zone)[0]}/subnetworks/[a-z0-9-]+$", path))
    ]), false)
    error_message = "subnets must give at least one zone a subnetwork of its region, like { us-central1-a = \"regions/us-central1/subnetworks/lab\" }."
  }
}

variable "network" {
  description = "Network of `subnets`, by name or as projects/P/global/networks/N: gets the firewall rules for machines. null: none are made there, its owners see to it."
  type        = string
  default     = null
}

variable "internet" {
  description = "How machines reach the rest of the internet, such as container registries: nat (Cloud NAT; made only for a network that is made), address (each has one, and nobody reaches it) or none. The store is reached either way."
  type        = string
  default     = "nat"
  validation {
    condition     = contains(["nat", "address", "none"], var.internet)
    error_message = "internet must be nat, address or none."
  }
}

variable "machine_types" {
  description = "Machine types that may be ordered, with wildcards. The controller chooses among them by price and capacity. IAM can't limit them: a quota or an organization policy can."
  type        = list(string)
  default     = ["c2d-standard-*", "n2-standard-*", "n2-highmem-*", "n2d-standard-*", "n2d-highmem-*"]
  validation {
    condition     = length(var.machine_types) > 0 && alltrue([for t in var.machine_types : can(regex("^[a-z0-9*?-]+$", t))])
    error_message = "machine_types must hold at least one type or wildcard, like n2-standard-4 or n2-*."
  }
}

variable "image" {
  description = "Image of the machines, or its family. x86-64, with systemd, curl or Python, and kernel 5.6 or newer. One of another private project: give the controller's account roles/compute.imageUser there."
  type        = string
  default     = "projects/debian-cloud/global/images/family/debian-12"
  validation {
    condition     = can(regex("^projects/[^/]+/global/images/(family/)?[a-z0-9-]+$", var.image))
    error_message = "image must be like projects/debian-cloud/global/images/family/debian-12."
  }
}

variable "disk_gib" {
  description = "Size of a machine's disk in GiB: the job's files, checkpoints fetched ahead, images and inputs."
  type        = number
  default     = 50
  validation {
    condition     = var.disk_gib >= 10 && var.disk_gib <= 65536 && floor(var.disk_gib) == var.disk_gib
    error_message = "disk_gib must be a whole number from 10 to 65536."
  }
}

variable "ssh_cidrs" {
  description = "Addresses that may reach port 22 of the machines; none by default, and nothing of spotsurfer needs it but `spotsurfer ssh`."
  type        = list(string)
  default     = []
  validation {
    condition     = alltrue([for c in var.ssh_cidrs : can(cidrhost(c, 0)) && c != "0.0.0.0/0"])
    error_message = "ssh_cidrs must hold address ranges like 203.0.113.0/24, and not the whole internet."
  }
}

variable "front_cidrs" {
  description = "Addresses of a controller elsewhere that leads connections to ports of jobs (`[front]`); none by default. The module's own controller may do so anyway."
  type        = list(string)
  default     = []
  validation {
    condition     = alltrue([for c in var.front_cidrs : can(cidrhost(c, 0)) && c != "0.0.0.0/0"])
    error_message = "front_cidrs must hold address ranges like 203.0.113.7/32, and not the whole internet."
  }
}

variable "existing_bucket" {
  description = "A bucket that exists already, with uniform bucket-level access; null: one is made. Nothing of it is changed but who may use it: switch off soft delete and versions yourself, and let multipart uploads end after some days."
  type        = string
  default     = null
}

variable "bucket_name" {
  description = "Name of the bucket that is made; null: <project>-<name>."
  type        = string
  default     = null
}

variable "bucket_location" {
  description = "Where the bucket lies; null: the region of the first zone. Traffic to machines of other regions costs."
  type        = string
  default     = null
}

variable "bucket_prefix" {
  description = "Where in the bucket the store begins."
  type        = string
  default     = "store"
  validation {
    condition     = can(regex("^[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*$", var.bucket_prefix))
    error_message = "bucket_prefix must be like store or teams/lab, without slashes at its ends."
  }
}

variable "bucket_force_destroy" {
  description = "May `terraform destroy` remove the bucket with all checkpoints and results in it? Otherwise it stops at a bucket that is not empty."
  type        = bool
  default     = false
}

variable "images_expire_days" {
  description = "Removes whatever below jobs/ was written so many days ago, also results; null: never. The controller removes old checkpoints by itself: this is a net below a store whose controller will never come back. Must be longer than the longest job runs."
  type        = number
  default     = null
  validation {
    condition     = var.images_expire_days == null || try(var.images_expire_days >= 60, false)
    error_message = "images_expire_days must be null or at least 60: chunks of a running job may be as old as the job."
  }
}

variable "input_buckets" {
  description = "Names of buckets that jobs read inputs from. A machine gets only what its own job declares."
  type        = list(string)
  default     = []
}

variable "secrets" {
  description = "Secrets of Secret Manager that job files may name, as projects/P/secrets/NAME."
  type        = list(string)
  default     = []
  validation {
    condition     = alltrue([for secret in var.secrets : can(regex("^projects/[^/]+/secrets/[A-Za-z0-9_-]+$", secret))])
    error_message = "secrets must be like projects/my-project-123456/secrets/token."
  }
}

variable "controller_members" {
  description = "Who may act as the controller's account, for a controller outside of Google: user:ada@example.org, group:…, serviceAccount:…"
  type        = list(string)
  default     = []
  validation {
    condition     = alltrue([for member in var.controller_members : can(regex("^(user|group|domain|serviceAccount|principal|principalSet):", member))])
    error_message = "controller_members must be like user:ada@example.org or serviceAccount:….iam.gserviceaccount.com."
  }
}

variable "controller_machine" {
  description = "A small machine that runs the controller under systemd, in one of the zones of the machines; null: none, it runs where you start it. `package` is what pip installs: a path or address of spotsurfer's wheel. `ssh`: may it reach port 22 of the machines? Reached through Identity-Aware Proxy."
  type = object({
    zone         = string
    package      = string
    machine_type = optional(string, "e2-small")
    image        = optional(string, "projects/debian-cloud/global/images/family/debian-12")
    data_gib     = optional(number, 20)
    ssh          = optional(bool, false)
  })
  default = null
  validation {
    condition     = var.controller_machine == null || try(length(var.controller_machine.package) > 0 && !can(regex("[\\s'\"`$\\\\]", var.controller_machine.package)), false)
    error_message = "controller_machine.package must be one word for pip, without quotes or spaces."
  }
}

variable "instances_max" {
  description = "Machines at a time, for the configuration."
  type        = number
  default     = 20
  validation {
    condition     = var.instances_max >= 1
    error_message = "instances_max must be at least 1."
  }
}

variable "budget_usd" {
  description = "Jobs are held before this is passed; null: no limit."
  type        = number
  default     = null
}

variable "labels" {
  description = "Labels of all resources and machines."
  type        = map(string)
  default     = {}
  validation {
    condition     = alltrue([for key, value in var.labels : can(regex("^[a-z][a-z0-9_-]{0,62}$", key)) && can(regex("^[a-z0-9_-]{0,63}$", value)) && !startswith(key, "goog") && !startswith(key, "spotsurfer-")])
    error_message = "labels must be of lower-case letters, digits, hyphens and underscores, and neither begin with goog nor with spotsurfer-."
  }
}
