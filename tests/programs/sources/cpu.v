// A mixing network with feedback: enough logic to synthesise, enough state to simulate.
module mixer #(parameter W = 32) (input clk, input rst, input [W-1:0] in, output reg [W-1:0] out);
  reg [W-1:0] s [0:7];
  integer i;
  wire [W-1:0] f = (s[0] & s[1]) ^ (~s[0] & s[2]);
  wire [W-1:0] g = {s[3][6:0], s[3][W-1:7]} + {s[4][18:0], s[4][W-1:19]};
  wire [2*W-1:0] p = s[5] * s[6];
  always @(posedge clk)
    if (rst) begin
      for (i = 0; i < 8; i = i + 1) s[i] <= 32'h9e3779b9 * (i + 1);
      out <= 0;
    end else begin
      for (i = 1; i < 8; i = i + 1) s[i] <= s[i-1] ^ (i == 4 ? g : 0);
      s[0] <= f + p[W-1:0] + in;
      out <= out ^ s[7] ^ p[2*W-1:W];
    end
endmodule
module top #(parameter N = 12) (input clk, input rst, output [31:0] sum);
  wire [31:0] o [0:N];
  reg [31:0] n;
  always @(posedge clk) n <= rst ? 0 : n + 1;
  assign o[0] = n;
  genvar k;
  generate for (k = 0; k < N; k = k + 1) begin : row
    mixer m(.clk(clk), .rst(rst), .in(o[k]), .out(o[k+1]));
  end endgenerate
  assign sum = o[N];
endmodule
