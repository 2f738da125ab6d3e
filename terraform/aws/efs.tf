# A file system for inputs; machines mount it as a job file says (output efs_mount).
resource "aws_efs_file_system" "inputs" {
  count          = var.efs ? 1 : 0
  creation_token = "${var.name}-inputs"
  encrypted      = true
  tags           = merge(local.tags, { Name = "${var.name}-inputs" })
}

resource "aws_security_group" "efs" {
  count       = var.efs ? 1 : 0
  name        = "${var.name}-efs"
  description = "spotsurfer inputs: NFS from its machines"
  vpc_id      = var.vpc_id
  tags        = local.tags
}

resource "aws_security_group_rule" "efs" {
  count                    = var.efs ? length(local.groups) : 0
  security_group_id        = aws_security_group.efs[0].id
  type                     = "ingress"
  description              = "NFS from machines"
  protocol                 = "tcp"
  from_port                = 2049
  to_port                  = 2049
  source_security_group_id = local.groups[count.index]
}

resource "aws_efs_mount_target" "inputs" {
  for_each        = var.efs ? var.subnets : {}
  file_system_id  = aws_efs_file_system.inputs[0].id
  subnet_id       = each.value
  security_groups = [aws_security_group.efs[0].id]
}
