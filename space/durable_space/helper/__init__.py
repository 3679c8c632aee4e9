"""The Space helper: files, scans and applies for a Space whose daemon has no `durable.space.v1`.

The same `files`, `workspace` and `staging` as the daemon's, packed with what they need into one zipapp (`archive`), started by
that daemon's StartProcess with stdin open, and spoken to in frames over stdin and stdout (`frames`). Standard library alone.

Guarantee: it lives no longer than its stdin is open, and it is one process that spawns none, so a daemon that ends its process
has ended all of it; a change that was under way is whole or absent, file by file, as the daemon's own are. One per workspace:
it holds a lock for its life, and what a killed one left beside targets is swept by the next.

Not chosen: many requests in flight. One frame is answered by one frame, so neither side buffers more than one, the daemon
between them (which keeps so much output and drops the rest) never drops a byte of it, and no thread outlives the end of stdin.
The adapter makes wrapped calls one at a time in any case.
"""
