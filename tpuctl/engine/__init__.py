"""Plans and the concurrent walk of a graph, knowing nothing of clouds."""

__all__: list[str] = []
