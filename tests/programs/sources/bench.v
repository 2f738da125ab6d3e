module bench;
  reg clk = 0, rst = 1;
  wire [31:0] sum;
  integer n = 0;
  top t(.clk(clk), .rst(rst), .sum(sum));
  always #5 clk = ~clk;
  always @(posedge clk) begin
    n = n + 1;
    if (n == 3) rst <= 0;
    if (n % `EVERY == 0) $display("%0d %h", n, sum);
    if (n == `CYCLES) $finish;
  end
endmodule
