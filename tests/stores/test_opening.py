"""Opening a store: URLs, files that are not what they should be, and the schema."""

from __future__ import annotations

import re
import shutil
import sqlite3
import time
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

from thumbwheel.errors import NotFound, SettingError, StoreError
from thumbwheel.stores import joining, migrate, tables
from thumbwheel.stores.sql import open_store
from thumbwheel.testing.clock import NOON
from thumbwheel.testing.samples import a_thumb


def schema_of(file: Path) -> dict[str, str]:
    """Name -> SQL of everything in a file, spaces and quotes aside."""
    connection = sqlite3.connect(file)
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    connection.close()
    return {name: re.sub(r"[\s\"]+", "", sql) for name, sql in rows if name != migrate.VERSION_TABLE}


def test_the_migrations_arrive_at_the_metadata(tmp_path: Path) -> None:
    """S1."""
    open_store(f"sqlite:///{tmp_path}/migrated.db").close()
    engine = create_engine(f"sqlite:///{tmp_path}/created.db")
    tables.metadata.create_all(engine)
    engine.dispose()
    assert schema_of(tmp_path / "migrated.db") == schema_of(tmp_path / "created.db")
    engine = create_engine(f"sqlite:///{tmp_path}/migrated.db")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": migrate.VERSION_TABLE})
        assert compare_metadata(context, tables.metadata) == []
    engine.dispose()


def test_every_revision_file_is_known_and_in_line() -> None:
    """S1."""
    scripts = ScriptDirectory(str(Path(migrate.__file__).parent / "migrations"))
    assert tuple(script.revision for script in scripts.walk_revisions())[::-1] == migrate.REVISIONS
    assert scripts.get_heads() == [migrate.HEAD]


def test_the_schema_compiles_for_postgresql() -> None:
    """S1: partial indices and joins are not SQLite's alone."""
    dialect = postgresql.dialect()
    for table in tables.metadata.sorted_tables:
        assert str(CreateTable(table).compile(dialect=dialect))
    partial = next(index for index in tables.versions.indexes if index.name == "uq_versions_live")
    text = str(CreateIndex(partial).compile(dialect=dialect))
    assert text == "CREATE UNIQUE INDEX uq_versions_live ON versions (kind) WHERE status = 'live'"
    assert "IS NOT DISTINCT FROM" in str(joining.IN_FORCE.compile(dialect=dialect))


def test_an_up_to_date_store_opens_fast(tmp_path: Path) -> None:
    """S1. Best of five, so that a busy machine does not decide."""
    url = f"sqlite:///{tmp_path}/store.db"
    open_store(url).close()
    took = []
    for _ in range(5):
        began = time.perf_counter()
        store = open_store(url)
        took.append(time.perf_counter() - began)
        store.close()
    assert min(took) < 0.3


def test_a_store_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    """S1."""
    url = f"sqlite:///{tmp_path}/store.db"
    open_store(url).close()
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute(f"UPDATE {migrate.VERSION_TABLE} SET version_num = '9999'")
    connection.close()
    with pytest.raises(StoreError, match=r"newer Thumbwheel.*9999.*pip install --upgrade thumbwheel"):
        open_store(url)


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    """S1."""
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE steps (walked INTEGER)")
    connection.close()
    with pytest.raises(StoreError, match="did not make"):
        open_store(f"sqlite:///{tmp_path}/other.db")
    assert schema_of(tmp_path / "other.db") == {"steps": "CREATETABLEsteps(walkedINTEGER)"}


@pytest.mark.parametrize(
    "content", [b"this is a letter to my aunt, and no database at all. " * 100, b"SQLite format 3\x00" + b"\xff" * 9000]
)
def test_a_file_that_is_no_store_is_told(tmp_path: Path, content: bytes) -> None:
    """Bad input: a damaged file says what to do and is not changed."""
    file = tmp_path / "store.db"
    file.write_bytes(content)
    with pytest.raises(StoreError, match=r"store\.db.*damaged or is no Thumbwheel store.*backup"):
        open_store(f"sqlite:///{file}")
    assert file.read_bytes() == content


def test_a_file_cut_short_is_told(tmp_path: Path) -> None:
    """Bad input: half the pages are missing."""
    file = tmp_path / "store.db"
    with open_store(f"sqlite:///{file}") as store:
        store.add_feedback([a_thumb(f"f{number}", comment="x" * 500) for number in range(500)], now=NOON)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

    def use() -> None:
        with open_store(f"sqlite:///{file}") as store:
            list(store.all_feedback())

    with pytest.raises(StoreError, match="damaged"):
        use()


def test_any_path_is_told_as_it_is(tmp_path: Path) -> None:
    """Bad input: spaces, accents and emoji in a path, and an error that names it readably."""
    file = tmp_path / "räum 1" / "it's 🚀.db"
    store = open_store(f"sqlite:///{file}")
    store.close()
    assert file.is_file()
    with pytest.raises(StoreError, match="räum 1/it's 🚀"):
        store.counts()


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    """S1: what a killed first opening may leave."""
    (tmp_path / "store.db").touch()
    with open_store(f"sqlite:///{tmp_path}/store.db", create=False) as store:
        assert store.counts()["steps"] == 0


def test_a_missing_file_is_made_only_where_asked(tmp_path: Path) -> None:
    """S1."""
    url = f"sqlite:///{tmp_path}/new/folder/store.db"
    with pytest.raises(NotFound, match=r"new/folder/store\.db"):
        open_store(url, create=False)
    assert not (tmp_path / "new").exists()
    open_store(url).close()
    assert (tmp_path / "new/folder/store.db").is_file()


def test_a_folder_in_the_place_of_the_file_is_told(tmp_path: Path) -> None:
    """Bad input."""
    with pytest.raises(StoreError, match="is a folder"):
        open_store(f"sqlite:///{tmp_path}")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="folder"):
        open_store(f"sqlite:///{tmp_path}/file/store.db")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("thumbwheel.db", "sqlite:///thumbwheel.db"),
        ("", "no URL"),
        ("sqlite://", "memory"),
        ("sqlite:///:memory:", "memory"),
        ("sqlite:///file:x?mode=memory&uri=true", "memory"),
        ("mysql://host/db", "not supported"),
    ],
)
def test_a_url_that_names_no_store_is_told(url: str, told: str) -> None:
    """S1."""
    with pytest.raises(SettingError, match=re.escape(told)):
        open_store(url)


def test_postgresql_without_its_driver_says_what_to_install() -> None:
    """S1."""
    if shutil.which("python") is None or _has_psycopg():
        pytest.skip("the driver is installed here")
    with pytest.raises(StoreError, match=r"thumbwheel\[postgres\]"):
        open_store("postgresql://user:secret@127.0.0.1/db")


def test_every_commit_is_synced_and_deleted_text_overwritten(tmp_path: Path) -> None:
    """S4: the settings that durability and erasure stand on."""
    from thumbwheel.stores import engine

    for make in (engine.reading, engine.writing):
        made = make(engine.parsed(f"sqlite:///{tmp_path}/store.db"))
        with made.connect() as connection:
            pragmas = {
                name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
                for name in ("journal_mode", "synchronous", "foreign_keys", "secure_delete")
            }
        made.dispose()
        assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "secure_delete": 1}


def _has_psycopg() -> bool:
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return False
    return True
