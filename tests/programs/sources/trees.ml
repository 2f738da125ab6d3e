(* trees ROUNDS: functional maps, buffers and exceptions; minor and major collections all the time. *)
module M = Map.Make (Int)

let mix x = (x * 2862933555777941757) + 3037000493

let work seed =
  let rec go i x m = if i = 0 then m else
    go (i - 1) (mix x) (M.update ((x lsr 17) mod 20011) (function None -> Some x | Some v -> Some (v lxor x)) m) in
  let m = go 30000 seed M.empty in
  let text = Buffer.create 65536 in
  M.iter (fun k v -> if k mod 3 = 0 then Buffer.add_string text (Printf.sprintf "%d:%x " k v)) m;
  Digest.to_hex (Digest.string (Buffer.contents text))

let () =
  for round = 1 to int_of_string Sys.argv.(1) do
    let found = work round in
    if round mod 20 = 0 then Printf.printf "%d %s\n%!" round found
  done
