//! Identity of an open file: detects that the file is no longer at its path.
//!
//! SQLite keeps using a file that was deleted or replaced at its path, but opens further
//! connections by the path: one handle would then read one file and write another. The file's
//! identity is therefore compared with that of its path at each use, and the log's before each
//! group of writes.
use std::{
    fs::{self, Metadata},
    io::ErrorKind,
    path::{Path, PathBuf},
};

use super::failure::file_failure;
use crate::port::{PortError, PortErrorKind};

/// Absolute paths of a database, independent of the working directory.
pub(super) struct DatabasePaths {
    /// The path as the caller gave it.
    pub(super) given: PathBuf,
    /// The path behind all symbolic links. SQLite's other files are beside this one.
    pub(super) real: PathBuf,
}

/// Resolves the path of a file, which need not exist yet. Rejects paths that cannot name a database
/// on a disk.
pub(super) fn locate(path: &Path) -> Result<DatabasePaths, PortError> {
    let text = path.to_string_lossy();
    if text == ":memory:" {
        return Err(PortError::invalid(
            "path",
            "must name a file: \":memory:\" is another database for each connection",
        ));
    }
    if text.starts_with("file:") {
        return Err(PortError::invalid("path", "must be a path, not a URI"));
    }
    if text.contains('\0') {
        return Err(PortError::invalid("path", "must not contain a NUL"));
    }
    let given = std::path::absolute(path).map_err(|error| file_failure(path, error))?;
    let real = match fs::metadata(&given) {
        Ok(found) => {
            check_kind(&given, &found)?;
            fs::canonicalize(&given).map_err(|error| file_failure(&given, error))?
        }
        Err(error) if error.kind() == ErrorKind::NotFound => match (given.parent(), given.file_name()) {
            (Some(folder), Some(name)) => {
                fs::canonicalize(folder).map_err(|error| file_failure(folder, error))?.join(name)
            }
            _ => return Err(PortError::invalid("path", "must name a file")),
        },
        Err(error) => return Err(file_failure(&given, error)),
    };
    Ok(DatabasePaths { given, real })
}

fn check_kind(path: &Path, found: &Metadata) -> Result<(), PortError> {
    let name = path.display();
    if found.is_dir() {
        return Err(PortError::new(PortErrorKind::Denied, format!("sqlite: {name} is a directory")));
    }
    if !found.is_file() {
        return Err(PortError::invalid("path", format!("{name} must be a regular file")));
    }
    #[cfg(unix)]
    if std::os::unix::fs::MetadataExt::nlink(found) > 1 {
        let rule = format!("{name} must have no second hard link: SQLite keeps one log for each name");
        return Err(PortError::invalid("path", rule));
    }
    Ok(())
}

/// Identities of the files that a handle has open, as they were at their paths when it was opened.
pub(super) struct Identity {
    database: WatchedFile,
    /// The log, and the index of the log that all processes map.
    beside: [WatchedFile; 2],
}

/// A file and its path.
struct WatchedFile {
    path: PathBuf,
    #[cfg(unix)]
    raw: std::ffi::CString,
    id: Id,
}

/// Identity of a file: device and inode.
#[cfg(unix)]
type Id = (u64, u64);
/// On other systems an open file can be neither deleted nor replaced.
#[cfg(not(unix))]
type Id = ();

impl Identity {
    /// Reads the current identities. Called while a connection has all of the files open.
    pub(super) fn of(located: &DatabasePaths) -> Result<Self, PortError> {
        let beside = |suffix: &str| {
            let mut path = located.real.clone().into_os_string();
            path.push(suffix);
            WatchedFile::new(path.into())
        };
        Ok(Self { database: WatchedFile::new(located.given.clone())?, beside: [beside("-wal")?, beside("-shm")?] })
    }

    /// Checks that the database is still at its path.
    ///
    /// # Errors
    /// `Closed` if it was deleted, moved or replaced; `Corrupt` if it was emptied.
    pub(super) fn check(&self) -> Result<(), PortError> {
        if self.database.check()? > 0 {
            return Ok(());
        }
        let message = format!("sqlite: {} was emptied while it was open", self.database.path.display());
        Err(PortError::new(PortErrorKind::Corrupt, message))
    }

    /// Checks the database and its log: writes to a log that has lost its name would be lost.
    pub(super) fn check_all(&self) -> Result<(), PortError> {
        self.check()?;
        self.beside.iter().try_for_each(|file| file.check().map(drop))
    }
}

impl WatchedFile {
    fn new(path: PathBuf) -> Result<Self, PortError> {
        #[cfg(unix)]
        let raw = std::ffi::CString::new(std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()))
            .map_err(|_| PortError::invalid("path", "must not contain a NUL"))?;
        let mut watched = Self {
            path,
            #[cfg(unix)]
            raw,
            id: Id::default(),
        };
        watched.id = watched.stat()?.0;
        Ok(watched)
    }

    /// Compares the identity with that of the file at the path now. Returns its size.
    fn check(&self) -> Result<u64, PortError> {
        let (id, size) = self.stat()?;
        if id == self.id { Ok(size) } else { Err(closed(&self.path, "replaced by another file")) }
    }

    /// Reads the identity and the size of the file at the path. This runs for each read and each
    /// group of writes, so it makes the system call without the standard library's additions.
    #[allow(clippy::unnecessary_cast, clippy::cast_sign_loss, reason = "the types differ between systems")]
    fn stat(&self) -> Result<(Id, u64), PortError> {
        #[cfg(unix)]
        let found = rustix::fs::stat(&self.raw)
            .map(|found| ((found.st_dev as u64, found.st_ino as u64), u64::try_from(found.st_size).unwrap_or(0)));
        #[cfg(not(unix))]
        let found = fs::metadata(&self.path).map(|found| ((), found.len()));
        found.map_err(|error| gone_or_failed(&self.path, error.into()))
    }
}

fn gone_or_failed(path: &Path, error: std::io::Error) -> PortError {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => closed(path, "deleted or moved"),
        _ => file_failure(path, error),
    }
}

fn closed(path: &Path, what: &str) -> PortError {
    let message = format!("sqlite: {} was {what} while it was open; reads and writes are refused", path.display());
    PortError::new(PortErrorKind::Closed, message)
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> (tempfile::TempDir, tempfile::TempDir, DatabasePaths) {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for name in ["db", "db-wal", "db-shm"] {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        let real = folder.path().join("db");
        (folder, elsewhere, DatabasePaths { given: real.clone(), real })
    }

    #[test]
    fn a_log_that_is_deleted_moved_or_replaced_is_noticed() {
        for file in ["db-wal", "db-shm"] {
            for what in ["deleted", "moved", "replaced"] {
                let (folder, _, located) = files();
                let identity = Identity::of(&located).unwrap();
                identity.check_all().unwrap();
                let (path, aside) = (folder.path().join(file), folder.path().join("aside"));
                fs::rename(&path, &aside).unwrap();
                match what {
                    "moved" => {}
                    "deleted" => fs::remove_file(&aside).unwrap(),
                    _ => fs::write(&path, "y").unwrap(),
                }
                assert_eq!(identity.check_all().unwrap_err().kind(), PortErrorKind::Closed, "{file} {what}");
                if what != "deleted" {
                    fs::rename(&aside, &path).unwrap();
                    identity.check_all().unwrap();
                }
            }
        }
    }

    #[test]
    fn the_folder_being_moved_or_replaced_is_noticed() {
        let (folder, elsewhere, located) = files();
        let identity = Identity::of(&located).unwrap();
        identity.check_all().unwrap();
        let moved = elsewhere.path().join("moved");
        fs::rename(folder.path(), &moved).unwrap();
        assert_eq!(identity.check_all().unwrap_err().kind(), PortErrorKind::Closed);
        fs::create_dir(folder.path()).unwrap();
        fs::copy(moved.join("db"), folder.path().join("db")).unwrap();
        assert_eq!(identity.check_all().unwrap_err().kind(), PortErrorKind::Closed);
    }
}
