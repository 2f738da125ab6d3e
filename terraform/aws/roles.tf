# Three roles, each with the least that it needs. What one attempt may touch is less still: the controller takes the job role
# with a session policy that ends at jobs/<job>/ and live/<job>.<attempt>. Tested as documents by tests/aws/test_rights.py.
resource "aws_iam_role" "controller" {
  name        = "${var.name}-controller"
  description = "spotsurfer: launches, watches and ends machines"
  tags        = local.tags
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [{ Sid = "Machine", Effect = "Allow", Principal = { Service = "ec2.amazonaws.com" }, Action = "sts:AssumeRole" }],
      length(var.controller_principals) == 0 ? [] :
      [{ Sid = "People", Effect = "Allow", Principal = { AWS = var.controller_principals }, Action = "sts:AssumeRole" }],
    )
  })
}

resource "aws_iam_policy" "controller" {
  name        = "${var.name}-controller"
  description = "What a spotsurfer controller needs"
  policy      = jsonencode({ Version = "2012-10-17", Statement = local.controller_statements })
  tags        = local.tags
}

resource "aws_iam_role_policy_attachment" "controller" {
  role       = aws_iam_role.controller.name
  policy_arn = aws_iam_policy.controller.arn
}

# Of the machines. It reads the agent and what was sealed for the attempt, and nothing else.
resource "aws_iam_role" "machines" {
  name               = "${var.name}-machines"
  description        = "spotsurfer machines: fetch the agent and its sealed access"
  tags               = local.tags
  assume_role_policy = local.trust_ec2
}

resource "aws_iam_role_policy" "machines" {
  name   = "fetch"
  role   = aws_iam_role.machines.id
  policy = jsonencode({ Version = "2012-10-17", Statement = local.machine_statements })
}

resource "aws_iam_instance_profile" "machines" {
  name = "${var.name}-machines"
  role = aws_iam_role.machines.name
  tags = local.tags
}

# Taken by the controller alone, always with a session policy.
resource "aws_iam_role" "job" {
  name                 = "${var.name}-job"
  description          = "spotsurfer: the store as jobs see it, cut down for each attempt"
  max_session_duration = 43200
  tags                 = local.tags
  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Sid = "Controller", Effect = "Allow", Principal = { AWS = aws_iam_role.controller.arn }, Action = "sts:AssumeRole" }]
  })
}

resource "aws_iam_role_policy" "job" {
  name   = "store"
  role   = aws_iam_role.job.id
  policy = jsonencode({ Version = "2012-10-17", Statement = local.job_statements })
}

locals {
  trust_ec2 = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Principal = { Service = "ec2.amazonaws.com" }, Action = "sts:AssumeRole" }]
  })
  machine_statements = [
    { Sid = "Fetch", Effect = "Allow", Action = ["s3:GetObject"], Resource = ["${local.root}/runtime/*", "${local.root}/access/*"] },
  ]
  # S3 answers 404 for an object that is not there only to who may list the bucket, and asks that without a prefix; else it
  # says 403, which would look like a lost right. So names of keys can be listed, contents can't be read.
  list_own = [
    { Sid = "List", Effect = "Allow", Action = ["s3:ListBucket"], Resource = [local.bucket_arn], Condition = { StringLike = { "s3:prefix" = ["${var.bucket_prefix}/*"] } } },
    { Sid = "NotFound", Effect = "Allow", Action = ["s3:ListBucket"], Resource = [local.bucket_arn], Condition = { Null = { "s3:prefix" = "true" } } },
  ]
  job_statements = concat(local.list_own, [
    {
      Sid      = "Store"
      Effect   = "Allow"
      Action   = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
      Resource = ["${local.root}/jobs/*", "${local.root}/live/*"]
    }],
    length(var.input_bucket_arns) == 0 ? [] : [
      { Sid = "Inputs", Effect = "Allow", Action = ["s3:GetObject", "s3:GetObjectVersion"], Resource = [for arn in var.input_bucket_arns : "${arn}/*"] },
      { Sid = "ListInputs", Effect = "Allow", Action = ["s3:ListBucket"], Resource = var.input_bucket_arns },
    ],
  )
}
