% waves.m: linear algebra and Fourier transforms with a fixed state.
rounds = str2double (argv (){1});
rand ("twister", 7);
a = rand (300);
x = zeros (300, 1);
for r = 1:rounds
  b = a * a' + 300 * eye (300);
  x = b \ (x + (1:300)');
  f = abs (fft (x));
  a = mod (a * 1.01 + f * f' / (norm (f) ^ 2), 1);
  if mod (r, 50) == 0
    printf ("%d %.17g %.17g\n", r, x(1), f(2));
    fflush (stdout);
  end
end
