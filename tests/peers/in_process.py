"""A library that keeps memories, behind the same lines of JSON as a server: `tests/bench_peers.py`
starts it with the library's own Python. The answers tell how long the library itself took.

    python in_process.py chromadb|sediment FOLDER MODEL
"""

import json
import sys
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Store = Callable[..., str]
Recall = Callable[..., list[str]]


def encoder(model: Path) -> Callable[[str], Any]:
    """Texts to vectors as Sediment makes them: its graph, one text at a time, without padding."""
    import numpy
    import onnxruntime
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(
        str(model / "model.onnx"), options, providers=["CPUExecutionProvider"]
    )

    def embed(text: str) -> Any:
        ids = numpy.array(tokenizer.encode(text).ids, numpy.int64)
        return session.run(["embedding"], {"ids": ids})[0]

    return embed


def chromadb(folder: Path, model: Path) -> tuple[Store, Recall]:
    """A plain vector store: the nearest by cosine."""
    import chromadb  # pyright: ignore[reportMissingImports]

    embed = encoder(model)
    client = chromadb.PersistentClient(str(folder / "chroma"))
    items = client.get_or_create_collection("items", metadata={"hnsw:space": "cosine"})

    def store(content: str) -> str:
        id = str(uuid.uuid4())
        items.add(ids=[id], embeddings=[embed(content)], documents=[content])
        return id

    def recall(query: str, limit: int) -> list[str]:
        return items.query(query_embeddings=[embed(query)], n_results=limit)["ids"][0]

    return store, recall


def sediment(folder: Path, _: Path) -> tuple[Store, Recall]:
    """Sediment as a library, which can be told when something was said."""
    from sediment import Memory

    memory = Memory(folder / "memory.db", project="bench")

    def store(content: str, created_at: int | None = None) -> str:
        return memory.store(content, created_at=created_at)["id"]

    def recall(query: str, limit: int) -> list[str]:
        return [row["id"] for row in memory.recall(query, limit=limit)["results"]]

    return store, recall


LIBRARIES: dict[str, Callable[[Path, Path], tuple[Store, Recall]]]
LIBRARIES = {"chromadb": chromadb, "sediment": sediment}


def serve(name: str, store: Store, recall: Recall, lines: Iterable[str]) -> None:
    """Answer until there are no more lines."""
    properties = {"content": {}} | ({"created_at": {}} if name == "sediment" else {})
    tools = [{"name": "store", "inputSchema": {"properties": properties}}, {"name": "recall"}]
    for line in lines:
        message = json.loads(line)
        result: dict[str, Any] = {"tools": tools}
        if message["method"] == "tools/call":
            given, start = message["params"]["arguments"], time.perf_counter()
            found = store(**given) if message["params"]["name"] == "store" else recall(**given)
            took = time.perf_counter() - start
            told = (
                {"id": found}
                if isinstance(found, str)
                else {"results": [{"id": id} for id in found]}
            )
            result = {"content": [{"text": json.dumps(told | {"seconds": took})}]}
        if "id" in message:
            print(json.dumps({"id": message["id"], "result": result}), flush=True)


if __name__ == "__main__":
    name, folder, model = sys.argv[1:]
    keep, ask = LIBRARIES[name](Path(folder), Path(model))
    serve(name, keep, ask, sys.stdin)
