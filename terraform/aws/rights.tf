# What the controller may do. RunInstances is asked of each resource that it touches, so each has a statement: the machine (own
# tag, own profile, allowed types, IMDSv2), its disk (own tag, encrypted), where it stands, what it is made of.
locals {
  image_arns = var.image == local.image_name ? ["arn:${local.partition}:ec2:${local.region}::image/*"] : ["arn:${local.partition}:ec2:${local.region}::image/${var.image}"]
  own_tag    = { "aws:RequestTag/spotsurfer-fleet" = var.name }

  launch_statements = [
    {
      Sid      = "LaunchMachine"
      Effect   = "Allow"
      Action   = ["ec2:RunInstances"]
      Resource = ["${local.ec2}:instance/*"]
      Condition = {
        StringEquals = merge(local.own_tag, { "ec2:MetadataHttpTokens" = "required" })
        StringLike   = { "ec2:InstanceType" = var.instance_types }
        ArnEquals    = { "ec2:InstanceProfile" = aws_iam_instance_profile.machines.arn }
      }
    },
    {
      Sid       = "LaunchDisk"
      Effect    = "Allow"
      Action    = ["ec2:RunInstances"]
      Resource  = ["${local.ec2}:volume/*"]
      Condition = { StringEquals = local.own_tag, Bool = { "ec2:Encrypted" = "true" } }
    },
    {
      Sid       = "LaunchInto"
      Effect    = "Allow"
      Action    = ["ec2:RunInstances"]
      Resource  = ["${local.ec2}:network-interface/*"]
      Condition = { ArnEquals = { "ec2:Subnet" = [for id in values(var.subnets) : "${local.ec2}:subnet/${id}"] } }
    },
    {
      Sid    = "LaunchWith"
      Effect = "Allow"
      Action = ["ec2:RunInstances"]
      Resource = concat(
        [for id in values(var.subnets) : "${local.ec2}:subnet/${id}"],
        [for id in local.groups : "${local.ec2}:security-group/${id}"],
        ["${local.ec2}:launch-template/${local.template}", "${local.ec2}:spot-instances-request/*"],
        var.key_name == null ? [] : ["${local.ec2}:key-pair/${var.key_name}"],
        local.image_arns,
      )
    },
    {
      Sid       = "TagAtLaunch"
      Effect    = "Allow"
      Action    = ["ec2:CreateTags"]
      Resource  = ["${local.ec2}:instance/*", "${local.ec2}:volume/*"]
      Condition = { StringEquals = merge(local.own_tag, { "ec2:CreateAction" = "RunInstances" }) }
    },
    {
      Sid       = "EndOwnMachines"
      Effect    = "Allow"
      Action    = ["ec2:TerminateInstances"]
      Resource  = ["${local.ec2}:instance/*"]
      Condition = { StringEquals = { "aws:ResourceTag/spotsurfer-fleet" = var.name } }
    },
    {
      Sid       = "ProfileOfMachines"
      Effect    = "Allow"
      Action    = ["iam:PassRole"]
      Resource  = [aws_iam_role.machines.arn]
      Condition = { StringEquals = { "iam:PassedToService" = "ec2.amazonaws.com" } }
    },
  ]

  # These know no resources: AWS lists all or nothing.
  look_statements = [
    {
      Sid    = "Look"
      Effect = "Allow"
      Action = concat(
        ["ec2:DescribeInstances", "ec2:DescribeInstanceTypes", "ec2:DescribeInstanceTypeOfferings", "ec2:DescribeSpotPriceHistory", "ec2:DescribeImages"],
        var.placement_scores ? ["ec2:GetSpotPlacementScores", "ec2:DescribeAvailabilityZones"] : [],
      )
      Resource  = ["*"]
      Condition = { StringEquals = { "aws:RequestedRegion" = local.region } }
    },
    { Sid = "Prices", Effect = "Allow", Action = ["pricing:GetProducts", "servicequotas:GetServiceQuota"], Resource = ["*"] },
  ]

  # Every second call is create-if-absent, so an object that is not there is the normal case: see NotFound in roles.tf.
  store_statements = [
    {
      Sid      = "Store"
      Effect   = "Allow"
      Action   = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
      Resource = ["${local.root}/*"]
    },
    { Sid = "List", Effect = "Allow", Action = ["s3:ListBucket"], Resource = [local.bucket_arn] },
  ]

  controller_statements = concat(
    local.launch_statements, local.look_statements, local.store_statements,
    [
      { Sid = "AccessOfJobs", Effect = "Allow", Action = ["sts:AssumeRole"], Resource = [aws_iam_role.job.arn] },
      { Sid = "Notices", Effect = "Allow", Action = ["sqs:ReceiveMessage", "sqs:DeleteMessage"], Resource = [aws_sqs_queue.notices.arn] },
    ],
    local.image_name == null ? [] : [
      # Public parameters belong to nobody's account.
      {
        Sid      = "Image"
        Effect   = "Allow"
        Action   = ["ssm:GetParameter"]
        Resource = ["arn:${local.partition}:ssm:${local.region}:${startswith(local.image_name, "/aws/service/") ? "" : local.account}:parameter${local.image_name}"]
      },
    ],
    length(var.secret_arns) == 0 ? [] : [
      { Sid = "SecretsOfJobs", Effect = "Allow", Action = ["secretsmanager:GetSecretValue"], Resource = var.secret_arns },
    ],
  )
}
