# Logic of the module without AWS: `terraform test` (Terraform 1.7 or newer).
mock_provider "aws" {
  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
  mock_data "aws_partition" {
    defaults = { partition = "aws" }
  }
  mock_data "aws_region" {
    defaults = { name = "eu-west-1" }
  }
  mock_data "aws_subnet" {
    defaults = { availability_zone = "eu-west-1a" }
  }
  mock_data "aws_ssm_parameter" {
    defaults = { value = "ami-0123456789abcdef0" }
  }
  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws:iam::123456789012:role/made" }
  }
  mock_resource "aws_iam_policy" {
    defaults = { arn = "arn:aws:iam::123456789012:policy/made" }
  }
  mock_resource "aws_iam_instance_profile" {
    defaults = { arn = "arn:aws:iam::123456789012:instance-profile/made" }
  }
  mock_resource "aws_sqs_queue" {
    defaults = { arn = "arn:aws:sqs:eu-west-1:123456789012:made" }
  }
  mock_resource "aws_cloudwatch_event_rule" {
    defaults = { arn = "arn:aws:events:eu-west-1:123456789012:rule/made" }
  }
  mock_resource "aws_launch_template" {
    defaults = { id = "lt-0123456789abcdef0" }
  }
}

variables {
  vpc_id  = "vpc-0123456789abcdef0"
  subnets = { eu-west-1a = "subnet-0a", eu-west-1b = "subnet-0b" }
}

run "defaults" {
  assert {
    condition     = length(aws_security_group_rule.ssh) == 0 && length(aws_vpc_endpoint.s3) == 0 && length(aws_instance.controller) == 0 && length(aws_efs_file_system.inputs) == 0
    error_message = "nothing optional is made unless it is asked for, and nothing is open"
  }
  assert {
    condition     = aws_s3_bucket.store.bucket == "spotsurfer-123456789012-eu-west-1" && !aws_s3_bucket.store.force_destroy
    error_message = "the bucket's name, and that it is kept"
  }
  assert {
    condition     = length(aws_s3_bucket_lifecycle_configuration.store.rule) == 2
    error_message = "only uploads that failed and old access are removed"
  }
  assert {
    condition     = strcontains(output.config, "eu-west-1b = \"subnet-0b\"") && !strcontains(output.config, "endpoint") && !strcontains(output.config, "budget_usd")
    error_message = "the configuration"
  }
  assert {
    condition     = aws_launch_template.machines[0].metadata_options[0].http_tokens == "required" && aws_launch_template.machines[0].metadata_options[0].http_put_response_hop_limit == 1
    error_message = "IMDSv2 alone, one hop"
  }
  assert {
    condition     = !contains([for s in jsondecode(aws_iam_role.controller.assume_role_policy).Statement : s.Sid], "People")
    error_message = "nobody but machines takes the controller's role unless named"
  }
}

run "everything" {
  variables {
    route_table_ids       = ["rtb-1"]
    ssh_cidrs             = ["203.0.113.0/24"]
    front_cidrs           = ["203.0.113.7/32"]
    efs                   = true
    images_expire_days    = 90
    budget_usd            = 12.5
    key_name              = "people"
    input_bucket_arns     = ["arn:aws:s3:::lab"]
    secret_arns           = ["arn:aws:secretsmanager:eu-west-1:123456789012:secret:lab-*"]
    controller_principals = ["arn:aws:iam::123456789012:user/ada"]
    controller_machine    = { subnet_id = "subnet-0a", package = "https://example.org/spotsurfer.whl" }
  }
  assert {
    condition     = length(aws_efs_mount_target.inputs) == 2 && length(aws_security_group_rule.ssh) == 1 && length(aws_vpc_endpoint.s3) == 1
    error_message = "what was asked for is made"
  }
  assert {
    condition     = aws_security_group_rule.front[0].from_port == 20400 && aws_security_group_rule.front[0].to_port == 20415 && aws_security_group_rule.own_front["this"].source_security_group_id == aws_security_group.controller["this"].id
    error_message = "the front reaches ports of jobs, from both controllers"
  }
  assert {
    condition     = strcontains(aws_instance.controller["this"].user_data, "subnet-0b") && strcontains(aws_instance.controller["this"].user_data, "budget_usd = \"12.5\"")
    error_message = "the machine's configuration is the one of the output"
  }
  assert {
    condition     = !contains(keys(aws_instance.controller["this"].tags), "spotsurfer-fleet")
    error_message = "the controller may not be able to end itself"
  }
  assert {
    condition     = length([for s in jsondecode(aws_iam_policy.controller.policy).Statement : s if s.Sid == "SecretsOfJobs"]) == 1
    error_message = "the right that comes with secrets"
  }
}

run "of_others" {
  command = plan
  variables {
    launch_template_id = "lt-0fee"
    security_group_ids = ["sg-0fee"]
    front_cidrs        = ["203.0.113.7/32"]
    image              = "ami-0123456789abcdef0"
  }
  assert {
    condition     = length(aws_launch_template.machines) == 0 && length(aws_security_group.machines) == 0 && length(aws_security_group_rule.front) == 0
    error_message = "what exists is not made again"
  }
  assert {
    condition     = !contains([for s in local.controller_statements : s.Sid], "Image")
    error_message = "no right to read a parameter that is not read"
  }
}

run "wrong_values" {
  command = plan
  variables {
    name               = "Lab One"
    vpc_id             = "default"
    subnets            = { "zone one" = "subnet-1" }
    instance_types     = ["m6i large"]
    image              = "debian-12"
    root_volume_gib    = 5
    launch_template_id = "machines"
    security_group_ids = []
    ssh_cidrs          = ["0.0.0.0/0"]
    front_cidrs        = ["everywhere"]
    bucket_prefix      = "/store/"
    images_expire_days = 7
    rebalance          = "panic"
    instances_max      = 0
    controller_machine = { subnet_id = "subnet-1", package = "a; rm -rf /" }
  }
  expect_failures = [
    var.name, var.vpc_id, var.subnets, var.instance_types, var.image, var.root_volume_gib, var.launch_template_id,
    var.security_group_ids, var.ssh_cidrs, var.front_cidrs, var.bucket_prefix, var.images_expire_days, var.rebalance, var.instances_max,
    var.controller_machine,
  ]
}
