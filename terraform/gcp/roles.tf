# Roles of our own, each with what one kind of right needs; roles.json has their permissions, and rights.tf says who has which.
locals {
  permissions = jsondecode(file("${path.module}/roles.json"))
  role        = { for name, made in google_project_iam_custom_role.this : name => made.name }
}

resource "google_project_iam_custom_role" "this" {
  for_each    = local.permissions
  project     = var.project
  role_id     = "${replace(var.name, "-", "_")}_${each.key}"
  title       = "spotsurfer ${each.key}"
  description = "spotsurfer (${var.name}): see roles.json of its Terraform module"
  permissions = each.value
  depends_on  = [google_project_service.apis]
}
