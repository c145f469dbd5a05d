"""The best tree over the words of one matrix of scores: the Chu-Liu/Edmonds algorithm.

References:
    - Finding optimum branchings (Tarjan, 1977), https://doi.org/10.1002/net.3230070103
    - Efficient algorithms for finding minimum spanning trees in undirected and directed graphs (Gabow, Galil, Spencer &
      Tarjan, 1986), section 3, on growing a path, https://doi.org/10.1007/BF02579168
"""

from __future__ import annotations

import math


def best_heads(scores: list[list[float]], *, single_root: bool) -> list[int]:
    """The heads of the best tree for one matrix, or of some tree if all are forbidden."""
    n = len(scores)
    root = [scores[m][m] for m in range(n)]
    heads = _Graph([[*row[:m], -math.inf, *row[m + 1 :]] for m, row in enumerate(scores)], root).best(single_root)
    if heads is None or (single_root and sum(head == m for m, head in enumerate(heads)) > 1):
        return [max(m - 1, 0) for m in range(n)]
    return heads


class _Graph:
    """Words, and cycles of words that are contracted to one node; each node has an edge from every word outside of it.

    Every node on the path chooses its best edge. Where the path ends in a cycle, the cycle becomes one node. An edge into
    the cycle at a member replaces the member's own edge, whose score is subtracted.
    """

    def __init__(self, edges: list[list[float]], root: list[float]) -> None:
        self.n = n = len(edges)
        self.edges, self.root = edges, root  # the scores of edges from each word, and from the root, into each node
        self.head, self.value = [0] * n, [0.0] * n  # the best edge into each node: from this word, or n for the root
        self.members: list[list[int]] = [[] for _ in range(n)]
        self.words = [[m] for m in range(n)]
        self.node = list(range(n))  # the node of each word

    def best(self, single_root: bool) -> list[int] | None:
        """The best tree, or None if there is none.

        With a single root, an edge from the root is only taken if a node has no other edge. This is equivalent to a penalty
        on these edges that outweighs all scores, and gives the smallest possible number of them. The penalty is not actually
        added, which avoids rounding errors.
        """
        is_done: set[int] = set()
        for word in range(self.n):
            path = [self.node[word]]
            while path[-1] not in is_done:
                if not self._choose(path[-1], single_root):
                    return None
                head = self.head[path[-1]]
                following = path[0] if head == self.n else self.node[head]
                if head == self.n or following in is_done:
                    is_done.update(path)
                elif following in path:
                    start = path.index(following)
                    path[start:] = [self._contract(path[start:])]
                else:
                    path.append(following)
        return self._expand()

    def _choose(self, node: int, single_root: bool) -> bool:
        """Choose the best edge into a node, the first one on ties, but the root before all; returns whether there is one."""
        edges, root = self.edges[node], self.root[node]
        value = max(edges)
        if (value == -math.inf) if single_root else (root >= value):
            self.head[node], self.value[node] = self.n, root
            return root > -math.inf
        self.head[node], self.value[node] = edges.index(value), value
        return True

    def _contract(self, cycle: list[int]) -> int:
        """Contract nodes whose best edges form a cycle to a new one."""
        new, value = len(self.edges), self.value
        words = [word for member in cycle for word in self.words[member]]
        edges = list(map(max, *([score - value[member] for score in self.edges[member]] for member in cycle)))
        for word in words:
            edges[word] = -math.inf
            self.node[word] = new
        self.edges.append(edges)
        self.root.append(max(self.root[member] - value[member] for member in cycle))
        self.head.append(0)
        self.value.append(0.0)
        self.members.append(cycle)
        self.words.append(words)
        return new

    def _expand(self) -> list[int]:
        """The heads of all words: in each cycle, all members keep their edges, except where the cycle is entered."""
        heads, nodes = [0] * self.n, list(set(self.node))
        while nodes:
            node = nodes.pop()
            head = self.head[node]
            while self.members[node]:
                score = self._score(node, head)
                members = self.members[node]
                node = next(member for member in members if self._score(member, head) - self.value[member] == score)
                nodes += [member for member in members if member != node]
            heads[node] = node if head == self.n else head
        return heads

    def _score(self, node: int, head: int) -> float:
        return self.root[node] if head == self.n else self.edges[node][head]
