# The optional controller machine. Its database and the master of all checkpoints' keys lie on a disk of their own, which
# outlives the machine: whoever loses it loses the checkpoints.
locals {
  templates = "${path.module}/../templates" # of all clouds
  machine   = var.controller_machine == null ? {} : { this = var.controller_machine }
  service = {
    command = "/opt/spotsurfer/bin/spotsurfer"
    config  = "/etc/spotsurfer/config.toml"
    data    = "/var/lib/spotsurfer-controller"
  }
}

resource "aws_iam_instance_profile" "controller" {
  for_each = local.machine
  name     = "${var.name}-controller"
  role     = aws_iam_role.controller.name
  tags     = local.tags
}

resource "aws_iam_role_policy_attachment" "session_manager" {
  for_each   = local.machine
  role       = aws_iam_role.controller.name
  policy_arn = "arn:${local.partition}:iam::aws:policy/AmazonSSMManagedInstanceCore"
}

data "aws_ssm_parameter" "image" {
  for_each = local.image_name == null ? {} : local.machine
  name     = var.image
}

data "aws_subnet" "controller" {
  for_each = local.machine
  id       = each.value.subnet_id
}

resource "aws_security_group" "controller" {
  for_each    = local.machine
  name        = "${var.name}-controller"
  description = "spotsurfer controller: nothing inbound"
  vpc_id      = var.vpc_id
  tags        = local.tags
}

resource "aws_security_group_rule" "controller_out" {
  for_each          = local.machine
  security_group_id = aws_security_group.controller[each.key].id
  type              = "egress"
  description       = "AWS and package indexes"
  protocol          = "-1"
  from_port         = 0
  to_port           = 0
  cidr_blocks       = ["0.0.0.0/0"]
}

resource "aws_ebs_volume" "controller" {
  for_each          = local.machine
  availability_zone = data.aws_subnet.controller[each.key].availability_zone
  size              = each.value.data_gib
  type              = "gp3"
  encrypted         = true
  tags              = merge(var.tags, { Name = "${var.name}-controller" }) # not the fleet's tag: the controller may not end itself
}

resource "aws_instance" "controller" {
  for_each               = local.machine
  ami                    = local.image_name == null ? var.image : nonsensitive(data.aws_ssm_parameter.image[each.key].value)
  instance_type          = each.value.instance_type
  subnet_id              = each.value.subnet_id
  iam_instance_profile   = aws_iam_instance_profile.controller[each.key].name
  vpc_security_group_ids = [aws_security_group.controller[each.key].id]
  ebs_optimized          = true
  # It is read at the first boot only, so another configuration takes another machine.
  user_data_replace_on_change = true
  user_data = templatefile("${local.templates}/controller.sh.tftpl", {
    config       = local.config
    package      = each.value.package
    extras       = "aws,ssh"
    disk         = "/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_${replace(aws_ebs_volume.controller[each.key].id, "-", "")}"
    unit         = templatefile("${local.templates}/spotsurfer.service.tftpl", local.service)
    unprivileged = templatefile("${local.templates}/unprivileged.conf.tftpl", local.service)
  })
  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }
  root_block_device {
    encrypted   = true
    volume_size = 16
    volume_type = "gp3"
  }
  tags = merge(var.tags, { Name = "${var.name}-controller" })
  lifecycle {
    ignore_changes = [ami] # a newer image is no reason to replace a controller
  }
}

resource "aws_volume_attachment" "controller" {
  for_each    = local.machine
  device_name = "/dev/sdf"
  volume_id   = aws_ebs_volume.controller[each.key].id
  instance_id = aws_instance.controller[each.key].id
}
