-- A shift register with feedback and a multiplier, with a test bench.
library ieee;
use ieee.std_logic_1164.all;
use ieee.numeric_std.all;
entity counter is generic (ROUNDS : integer := 100); end;
architecture sim of counter is
    signal clock : std_logic := '0';
    signal state : unsigned(31 downto 0) := x"12345678";
    signal sum : unsigned(31 downto 0) := (others => '0');
begin
    clock <= not clock after 5 ns;
    process (clock) begin
        if rising_edge(clock) then
            state <= state(30 downto 0) & (state(31) xor state(21) xor state(1) xor state(0));
            sum <= resize(sum * 31, 32) + state;
        end if;
    end process;
    process begin
        for r in 1 to ROUNDS loop
            for i in 1 to 2000 loop wait until rising_edge(clock); end loop;
            report to_hstring(sum);
        end loop;
        std.env.finish;
    end process;
end;
