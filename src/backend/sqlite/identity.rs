//! The identity of an open file: where it is, and that it is still there.
//!
//! SQLite goes on with a file that was deleted or replaced at its path, and opens further
//! connections by the path: one handle would then read one file and write another. The file's
//! identity is therefore compared with that of its path at each use.
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
    beside: Vec<Watched>,
}

struct Watched {
    path: PathBuf,
    id: Id,
}

/// Tells one file from another.
#[cfg(unix)]
type Id = (u64, u64);
/// Elsewhere an open file can be neither deleted nor replaced.
#[cfg(not(unix))]
type Id = ();

#[cfg(unix)]
fn id(found: &Metadata) -> Id {
    use std::os::unix::fs::MetadataExt;
    (found.dev(), found.ino())
}

#[cfg(not(unix))]
fn id(_: &Metadata) -> Id {}

impl Identity {
    /// The files as they are now. Called while a connection has all of them open.
    pub(super) fn of(located: &Located) -> Result<Self, PortError> {
        let watch = |path: PathBuf| match fs::metadata(&path) {
            Ok(found) => Ok(Watched { id: id(&found), path }),
            Err(error) => Err(gone_or_failed(&path, error)),
        };
        let beside = |suffix: &str| {
            let mut path = located.real.clone().into_os_string();
            path.push(suffix);
            watch(path.into())
        };
        Ok(Self { database: watch(located.given.clone())?, beside: vec![beside("-wal")?, beside("-shm")?] })
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
    /// Compares it with what is at its path now. Returns its size.
    fn check(&self) -> Result<u64, PortError> {
        let found = fs::metadata(&self.path).map_err(|error| gone_or_failed(&self.path, error))?;
        if id(&found) == self.id { Ok(found.len()) } else { Err(closed(&self.path, "replaced by another file")) }
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
