"""Rows by what they are asked for: number, request id, tag, key. In memory; the ledger owns it and fills it."""

from __future__ import annotations

from durable_space.rows import Row


class RowIndex:
    """`rows` may be read from any thread; everything else under the ledger's lock, but for `all_keys`."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self._by_request: dict[str, int] = {}
        self._by_tag: dict[str, set[int]] = {}  # of rows whose tag is not their request id
        self._by_key: dict[str, set[int]] = {}

    def keep(self, row: Row) -> None:
        """A new row, or one that has changed; neither its id, tag nor key ever does."""
        if row.seq not in self.rows:
            self._by_request[row.request_id] = row.seq
            self._by_key.setdefault(row.key, set()).add(row.seq)
            if row.tag != row.request_id:
                self._by_tag.setdefault(row.tag, set()).add(row.seq)
        self.rows[row.seq] = row

    def drop(self, row: Row) -> bool:
        """False: it was not there."""
        if self.rows.pop(row.seq, None) is None:
            return False
        if self._by_request.get(row.request_id) == row.seq:
            del self._by_request[row.request_id]
        _discard(self._by_key, row.key, row.seq)
        _discard(self._by_tag, row.tag, row.seq)
        return True

    def by_request(self, request_id: str) -> Row | None:
        return self.rows.get(self._by_request.get(request_id, 0))

    def by_tag(self, tag: str) -> Row | None:
        """Whose request id it is; else the newest that has it as tag: no other command's tag can stand before an id."""
        newest = max(self._by_tag.get(tag, ()), default=0)
        return self.rows.get(self._by_request.get(tag, newest))

    def by_key(self, key: str) -> list[Row]:
        """Of all epochs."""
        return [self.rows[seq] for seq in self._by_key.get(key, ())]

    def all_keys(self) -> list[str]:
        """A copy, made in one step: any thread may ask."""
        return list(self._by_key)


def _discard(index: dict[str, set[int]], name: str, seq: int) -> None:
    found = index.get(name, set())
    found.discard(seq)
    if not found:
        index.pop(name, None)
