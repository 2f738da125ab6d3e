%% ring:main([Rounds]): a ring of a thousand processes, an ETS table, binaries and timers.
-module(ring).
-export([main/1]).

main([Text]) ->
    Rounds = list_to_integer(Text),
    ets:new(table, [named_table, public, ordered_set]),
    Self = self(),
    First = lists:foldl(fun(N, Next) -> spawn_link(fun() -> node_(N, Next) end) end, Self, lists:seq(1, 1000)),
    [round_(R, First) || R <- lists:seq(1, Rounds)],
    io:format("~p ~s~n", [ets:info(table, size), hex(crypto_free(ets:tab2list(table)))]).

node_(N, Next) ->
    receive
        {R, Hash} ->
            ets:insert(table, {{N, R rem 7}, Hash}),
            Next ! {R, erlang:md5([Hash, integer_to_binary(N)])},
            node_(N, Next)
    end.

round_(R, First) ->
    First ! {R, erlang:md5(integer_to_binary(R))},
    receive
        {R, Hash} when R rem 100 =:= 0 -> io:format("~p ~s~n", [R, hex(Hash)]), receive after 5 -> ok end;
        {R, _} -> ok
    end.

crypto_free(List) -> erlang:md5(term_to_binary(List)).

hex(Bytes) -> [io_lib:format("~2.16.0b", [B]) || <<B>> <= Bytes].
