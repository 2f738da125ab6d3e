# Machines fetch everything themselves: nothing inbound.
resource "aws_security_group" "machines" {
  count       = var.security_group_ids == null ? 1 : 0
  name        = "${var.name}-machines"
  description = "spotsurfer machines: nothing inbound"
  vpc_id      = var.vpc_id
  tags        = local.tags
}

resource "aws_security_group_rule" "out" {
  count             = var.security_group_ids == null ? 1 : 0
  security_group_id = aws_security_group.machines[0].id
  type              = "egress"
  description       = "Store, container registries, inputs"
  protocol          = "-1"
  from_port         = 0
  to_port           = 0
  cidr_blocks       = ["0.0.0.0/0"]
}

resource "aws_security_group_rule" "ssh" {
  count             = var.security_group_ids == null && length(var.ssh_cidrs) > 0 ? 1 : 0
  security_group_id = aws_security_group.machines[0].id
  type              = "ingress"
  description       = "spotsurfer ssh"
  protocol          = "tcp"
  from_port         = 22
  to_port           = 22
  cidr_blocks       = var.ssh_cidrs
}

# Ports that jobs declare are reached at these of their machine (`spotsurfer_agent/netns.py`), by the controller alone.
locals {
  doors = { from = 20400, to = 20415 }
}

resource "aws_security_group_rule" "front" {
  count             = var.security_group_ids == null && length(var.front_cidrs) > 0 ? 1 : 0
  security_group_id = aws_security_group.machines[0].id
  type              = "ingress"
  description       = "Ports of jobs, from a controller elsewhere"
  protocol          = "tcp"
  from_port         = local.doors.from
  to_port           = local.doors.to
  cidr_blocks       = var.front_cidrs
}

resource "aws_security_group_rule" "own_front" {
  for_each                 = var.security_group_ids == null ? local.machine : {}
  security_group_id        = aws_security_group.machines[0].id
  type                     = "ingress"
  description              = "Ports of jobs, from the controller"
  protocol                 = "tcp"
  from_port                = local.doors.from
  to_port                  = local.doors.to
  source_security_group_id = aws_security_group.controller[each.key].id
}

resource "aws_vpc_endpoint" "s3" {
  count             = length(var.route_table_ids) > 0 ? 1 : 0
  vpc_id            = var.vpc_id
  service_name      = "com.amazonaws.${local.region}.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = var.route_table_ids
  tags              = merge(local.tags, { Name = "${var.name}-s3" })
}
