variable "name" {
  description = "Begins the names of all resources; also the value of the tag spotsurfer-fleet, by which the controller's rights end at its own machines. Two controllers of one account need two names."
  type        = string
  default     = "spotsurfer"
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,24}$", var.name))
    error_message = "name must be 2 to 25 lower-case letters, digits and hyphens, and begin with a letter."
  }
}

variable "vpc_id" {
  description = "VPC of the machines."
  type        = string
  validation {
    condition     = startswith(var.vpc_id, "vpc-")
    error_message = "vpc_id must be the id of a VPC, like vpc-0123456789abcdef0."
  }
}

variable "subnets" {
  description = "Where machines may run: availability zone -> subnet id, one subnet a zone. More zones mean more pools to choose from. They need a way to S3 (see route_table_ids) and to the STS and registries that jobs use."
  type        = map(string)
  validation {
    condition     = length(var.subnets) > 0
    error_message = "subnets must name at least one zone and its subnet."
  }
  validation {
    condition     = alltrue([for zone in keys(var.subnets) : can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]+[a-z]$", zone))])
    error_message = "The keys of subnets must be availability zones, like us-east-1a."
  }
}

variable "instance_types" {
  description = "Types that may be launched, with wildcards. The controller chooses among them by price and capacity, and IAM allows no others."
  type        = list(string)
  default     = ["c5.*", "c6i.*", "c7i.*", "m5.*", "m6i.*", "m7i.*", "r5.*", "r6i.*", "r7i.*"]
  validation {
    condition     = length(var.instance_types) > 0 && alltrue([for t in var.instance_types : can(regex("^[a-z0-9*?-]+(\\.[a-z0-9*?-]+)?$", t))])
    error_message = "instance_types must hold at least one type or wildcard, like m6i.large or c6i.*."
  }
}

variable "image" {
  description = "Image of the machines: the id of an AMI, or the name of a public SSM parameter that holds one. x86-64, with systemd, curl 7.75 or newer and kernel 5.6 or newer."
  type        = string
  default     = "/aws/service/debian/release/12/latest/amd64"
  validation {
    condition     = can(regex("^(ami-[0-9a-f]{8,17}|/[A-Za-z0-9_./-]+)$", var.image))
    error_message = "image must be an AMI like ami-0123456789abcdef0, or an SSM parameter's name that begins with a slash."
  }
}

variable "root_volume_gib" {
  description = "Size of a machine's disk in GiB: the job's files, checkpoints fetched ahead, images and inputs."
  type        = number
  default     = 50
  validation {
    condition     = var.root_volume_gib >= 10 && var.root_volume_gib <= 16384 && floor(var.root_volume_gib) == var.root_volume_gib
    error_message = "root_volume_gib must be a whole number from 10 to 16384."
  }
}

variable "launch_template_id" {
  description = "A launch template that exists already; null: one is made. What spotsurfer says of a launch (type, zone, market, profile, groups, tags, user-data) wins over it."
  type        = string
  default     = null
  validation {
    condition     = var.launch_template_id == null || can(regex("^lt-[0-9a-f]+$", var.launch_template_id))
    error_message = "launch_template_id must be like lt-0123456789abcdef0."
  }
}

variable "security_group_ids" {
  description = "Security groups of the machines that exist already; null: one is made, with nothing inbound."
  type        = list(string)
  default     = null
  validation {
    condition     = var.security_group_ids == null || try(length(var.security_group_ids) > 0, false)
    error_message = "security_group_ids must be null or hold at least one group."
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

variable "key_name" {
  description = "EC2 key pair for people who log in; null: none."
  type        = string
  default     = null
}

variable "bucket_name" {
  description = "Name of the bucket; null: <name>-<account>-<region>."
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

variable "route_table_ids" {
  description = "Route tables that get a gateway endpoint for S3 (free of charge, traffic to the bucket stays inside); none: it is not made."
  type        = list(string)
  default     = []
}

variable "input_bucket_arns" {
  description = "Buckets that jobs read inputs from. A machine gets only what its own job declares."
  type        = list(string)
  default     = []
}

variable "secret_arns" {
  description = "Secrets of Secrets Manager that job files may name."
  type        = list(string)
  default     = []
}

variable "placement_scores" {
  description = "May the controller ask for spot placement scores (for the policy price-capacity)?"
  type        = bool
  default     = false
}

variable "rebalance" {
  description = "What a rebalance recommendation leads to: ignore, checkpoint or move."
  type        = string
  default     = "checkpoint"
  validation {
    condition     = contains(["ignore", "checkpoint", "move"], var.rebalance)
    error_message = "rebalance must be ignore, checkpoint or move."
  }
}

variable "controller_principals" {
  description = "ARNs of users and roles that may take the controller's role, for a controller outside of EC2."
  type        = list(string)
  default     = []
}

variable "controller_machine" {
  description = "A small machine that runs the controller under systemd; null: none, it runs where you start it. `package` is what pip installs: a path or address of spotsurfer's wheel. Reached by Session Manager."
  type = object({
    subnet_id     = string
    package       = string
    instance_type = optional(string, "t3.small")
    data_gib      = optional(number, 20)
  })
  default = null
  validation {
    condition     = var.controller_machine == null || try(length(var.controller_machine.package) > 0 && !can(regex("[\\s'\"`$\\\\]", var.controller_machine.package)), false)
    error_message = "controller_machine.package must be one word for pip, without quotes or spaces."
  }
}

variable "efs" {
  description = "Make a file system for inputs that jobs mount (read-only as far as spotsurfer is concerned)?"
  type        = bool
  default     = false
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

variable "endpoint_url" {
  description = "Address of a service that stands in for AWS, in tests; null: AWS itself. It goes into the configuration and nowhere else."
  type        = string
  default     = null
}

variable "tags" {
  description = "Tags of all resources and machines."
  type        = map(string)
  default     = {}
}
