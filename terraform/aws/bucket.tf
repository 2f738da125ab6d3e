# The store: private, encrypted, TLS only. No versioning: spotsurfer never changes an object, and old versions would be paid for.
locals {
  bucket_name = coalesce(var.bucket_name, "${var.name}-${local.account}-${local.region}")
  bucket_arn  = "arn:${local.partition}:s3:::${local.bucket_name}"
}

resource "aws_s3_bucket" "store" {
  bucket        = local.bucket_name
  force_destroy = var.bucket_force_destroy
  tags          = local.tags
}

resource "aws_s3_bucket_public_access_block" "store" {
  bucket                  = aws_s3_bucket.store.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "store" {
  bucket = aws_s3_bucket.store.id
  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "store" {
  bucket = aws_s3_bucket.store.id
  rule {
    apply_server_side_encryption_by_default {
      sse_algorithm = "AES256" # a KMS key would be asked for each chunk; what must be secret, spotsurfer encrypts itself
    }
  }
}

resource "aws_s3_bucket_policy" "store" {
  bucket     = aws_s3_bucket.store.id
  depends_on = [aws_s3_bucket_public_access_block.store]
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "TlsOnly"
      Effect    = "Deny"
      Principal = "*"
      Action    = "s3:*"
      Resource  = [local.bucket_arn, "${local.bucket_arn}/*"]
      Condition = { Bool = { "aws:SecureTransport" = "false" } }
    }]
  })
}

resource "aws_s3_bucket_lifecycle_configuration" "store" {
  bucket = aws_s3_bucket.store.id
  rule {
    id     = "uploads-that-failed"
    status = "Enabled"
    filter {}
    abort_incomplete_multipart_upload {
      days_after_initiation = 2
    }
  }
  rule {
    id     = "access-of-machines-long-gone"
    status = "Enabled"
    filter {
      prefix = "${var.bucket_prefix}/access/"
    }
    expiration {
      days = 2
    }
  }
  dynamic "rule" {
    for_each = var.images_expire_days == null ? [] : [var.images_expire_days]
    content {
      id     = "images-of-jobs-long-gone"
      status = "Enabled"
      filter {
        prefix = "${var.bucket_prefix}/jobs/"
      }
      expiration {
        days = rule.value
      }
    }
  }
}
