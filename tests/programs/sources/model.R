# model.R ROUNDS: regressions on random data, results as a table.
rounds <- as.integer(commandArgs(TRUE)[1])
set.seed(11)
found <- NULL
for (r in seq_len(rounds)) {
  n <- 4000
  d <- data.frame(a = rnorm(n), b = runif(n), g = factor(sample(letters[1:6], n, TRUE)))
  d$y <- with(d, 2 * a - b + as.integer(g) * 0.3 + rnorm(n))
  fit <- lm(y ~ a * b + g, data = d)
  boot <- replicate(20, mean(sample(d$y, n, TRUE)))
  found <- rbind(found, c(coef(fit), summary(fit)$r.squared, sd(boot)))
  if (r %% 10 == 0) cat(r, format(summary(fit)$r.squared, digits = 12), "\n")
}
write.csv(format(found, digits = 15), "fits.csv", row.names = FALSE)
