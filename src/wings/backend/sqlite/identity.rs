//! The identity of an open file: where it is, and that it is still there.
//!
//! SQLite goes on with a file that was deleted or replaced at its path, and opens further
//! connections by the path: one handle would then read one file and write another. The file's
//! identity is therefore compared with that of its path at each use, and the log's before each group
//! of writes.
use std::{
    fs::{self, Metadata},
    io::ErrorKind,
    path::{Path, PathBuf},
};

use super::failure::file_failure;
use crate::port::{PortError, PortErrorKind};

/// The paths of a database, absolute: a change of the working directory changes nothing.
pub(super) struct Located {
    /// The path as it was given.
    pub(super) given: PathBuf,
    /// The same behind all symbolic links. SQLite's other files are beside this one.
    pub(super) real: PathBuf,
}

/// Finds the file, which need not exist yet. Refuses what cannot be a database on a disk, by name.
pub(super) fn locate(path: &Path) -> Result<Located, PortError> {
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
    Ok(Located { given, real })
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

/// The files that a handle has open, as they were found at their paths when it was opened.
pub(super) struct Identity {
    database: Watched,
    /// The log, and the index of the log that all processes map.
    beside: [Watched; 2],
}

/// One file, and its path.
struct Watched {
    path: PathBuf,
    #[cfg(unix)]
    raw: std::ffi::CString,
    id: Id,
}

/// Tells one file from another.
#[cfg(unix)]
type Id = (u64, u64);
/// Elsewhere an open file can be neither deleted nor replaced.
#[cfg(not(unix))]
type Id = ();

impl Identity {
    /// The files as they are now. Called while a connection has all of them open.
    pub(super) fn of(located: &Located) -> Result<Self, PortError> {
        let beside = |suffix: &str| {
            let mut path = located.real.clone().into_os_string();
            path.push(suffix);
            Watched::new(path.into())
        };
        Ok(Self { database: Watched::new(located.given.clone())?, beside: [beside("-wal")?, beside("-shm")?] })
    }

    /// Fails where the database is no longer at its path.
    ///
    /// # Errors
    /// `Closed` where it was deleted, moved or replaced; `Corrupt` where it was emptied.
    pub(super) fn check(&self) -> Result<(), PortError> {
        if self.database.check()? > 0 {
            return Ok(());
        }
        let message = format!("sqlite: {} was emptied while it was open", self.database.path.display());
        Err(PortError::new(PortErrorKind::Corrupt, message))
    }

    /// The same, for the log as well: what is written to a log without a name is lost.
    pub(super) fn check_all(&self) -> Result<(), PortError> {
        self.check()?;
        self.beside.iter().try_for_each(|file| file.check().map(drop))
    }
}

impl Watched {
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
        watched.id = watched.look()?.0;
        Ok(watched)
    }

    /// Compares it with what is at its path now. Returns its size.
    fn check(&self) -> Result<u64, PortError> {
        let (id, size) = self.look()?;
        if id == self.id { Ok(size) } else { Err(closed(&self.path, "replaced by another file")) }
    }

    /// Reads the identity and the size of the file at the path. Done for each read and each group
    /// of writes, so without what the standard library does beside the system's call.
    #[allow(clippy::unnecessary_cast, clippy::cast_sign_loss, reason = "the types differ between systems")]
    fn look(&self) -> Result<(Id, u64), PortError> {
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
    let message =
        format!("sqlite: {} was {what} while it was open: nothing is read or written any more", path.display());
    PortError::new(PortErrorKind::Closed, message)
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> (tempfile::TempDir, tempfile::TempDir, Located) {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for name in ["db", "db-wal", "db-shm"] {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        let real = folder.path().join("db");
        (folder, elsewhere, Located { given: real.clone(), real })
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
