//! The identity of an open file: where it is, and that it is still there.
//!
//! SQLite goes on with a file that was deleted or replaced at its path, and opens further
//! connections by the path: one handle would then read one file and write another. The file's
//! identity is therefore compared with that of its path at each use. The log's is compared before
//! each group of writes, where its folder has changed since it was last compared.
use std::{
    fs::{self, Metadata},
    io::ErrorKind,
    path::{Path, PathBuf},
};

use super::failure::file_failure;
use crate::{
    port::{PortError, PortErrorKind},
    time::Timestamp,
};

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
    folder: Folder,
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
        Ok(Self {
            database: Watched::new(located.given.clone())?,
            beside: [beside("-wal")?, beside("-shm")?],
            folder: Folder::of(&located.real),
        })
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
        self.check_all_at(Timestamp::now())
    }

    fn check_all_at(&self, wall: Timestamp) -> Result<(), PortError> {
        self.check()?;
        self.folder.unless_unchanged(wall, || self.beside.iter().try_for_each(|file| file.check().map(drop)))
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

/// The folder of the files, open. A name in it cannot be given to another file, nor taken away,
/// without a change of the time that the system keeps of the folder itself, which no program sets.
#[cfg(unix)]
struct Folder {
    /// `None` where the folder may not be read: the files in it are then looked at each time.
    open: Option<fs::File>,
    /// The state in which all names were found to be as they should.
    known: std::sync::Mutex<Option<FolderState>>,
}

/// Seconds and nanoseconds of the last change.
#[cfg(unix)]
type FolderState = (i64, i64);

/// Time for which a folder must have been unchanged before its state is relied on, in milliseconds:
/// two changes in the same tick of the file system's clock look like one. Ticks are of 10 ms at
/// most, but where the clock counts whole seconds: then of two seconds.
#[cfg(unix)]
fn settling((_, nanos): FolderState) -> i64 {
    if nanos == 0 { 4000 } else { 100 }
}

#[cfg(unix)]
impl Folder {
    fn of(file: &Path) -> Self {
        let open = file.parent().and_then(|folder| fs::File::open(folder).ok());
        Self { open, known: std::sync::Mutex::default() }
    }

    #[allow(clippy::unnecessary_cast, clippy::cast_possible_wrap, reason = "the types differ between systems")]
    fn state(&self) -> Option<FolderState> {
        let found = rustix::fs::fstat(self.open.as_ref()?).ok()?;
        Some((found.st_ctime as i64, found.st_ctime_nsec as i64))
    }

    /// Does the check, unless no name in the folder has changed since it last succeeded.
    fn unless_unchanged(
        &self,
        wall: Timestamp,
        check: impl FnOnce() -> Result<(), PortError>,
    ) -> Result<(), PortError> {
        let now = i64::try_from(wall.as_millis()).unwrap_or(0);
        // Before the check: what changes after it is a later state.
        let state = self.state();
        let is_settled = |state: &FolderState| {
            let changed = state.0.saturating_mul(1000).saturating_add(state.1 / 1_000_000);
            changed.saturating_add(settling(*state)) <= now
        };
        let state = state.filter(is_settled);
        let mut known = self.known.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if state.is_some() && *known == state {
            return Ok(());
        }
        *known = None;
        check()?;
        *known = state;
        Ok(())
    }
}

#[cfg(not(unix))]
struct Folder;

#[cfg(not(unix))]
impl Folder {
    fn of(_: &Path) -> Self {
        Self
    }

    fn unless_unchanged(&self, _: Timestamp, check: impl FnOnce() -> Result<(), PortError>) -> Result<(), PortError> {
        check()
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

    /// An hour from now: by then the folder is settled.
    fn later() -> Timestamp {
        Timestamp::from_millis(Timestamp::now().as_millis() + 3_600_000)
    }

    #[test]
    fn a_file_system_that_counts_whole_seconds_settles_later() {
        assert!(settling((5, 0)) > 2000 && settling((5, 1)) < 1000);
    }

    /// Whether the names are looked at.
    fn looks(folder: &Folder, at: Timestamp) -> bool {
        let mut looked = false;
        let checked = folder.unless_unchanged(at, || {
            looked = true;
            Ok(())
        });
        checked.unwrap();
        looked
    }

    /// Lets the file system's clock go on, so that the next change has a time of its own.
    fn next_tick(folder: &Path) {
        use std::os::unix::fs::MetadataExt;
        let times = || {
            fs::write(folder.join("tick"), "").unwrap();
            let found = fs::metadata(folder.join("tick")).unwrap();
            (found.ctime(), found.ctime_nsec())
        };
        let before = times();
        while times() == before {}
    }

    fn files() -> (tempfile::TempDir, tempfile::TempDir, Located) {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for name in ["db", "db-wal", "db-shm"] {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        let real = folder.path().join("db");
        (folder, elsewhere, Located { given: real.clone(), real })
    }

    #[test]
    fn names_are_looked_at_again_only_after_a_change_of_their_folder() {
        let (files, elsewhere, located) = files();
        let folder = Folder::of(&located.real);
        assert!(looks(&folder, later()));
        assert!(!looks(&folder, later()));
        next_tick(elsewhere.path());
        fs::write(files.path().join("another"), "").unwrap();
        assert!(looks(&folder, later()));
        assert!(!looks(&folder, later()));
    }

    #[test]
    fn a_folder_that_changed_just_now_is_not_relied_on() {
        let (_files, _elsewhere, located) = files();
        let folder = Folder::of(&located.real);
        let (seconds, nanos) = folder.state().unwrap();
        let after =
            |millis| Timestamp::from_millis(seconds.unsigned_abs() * 1000 + nanos.unsigned_abs() / 1_000_000 + millis);
        assert!(looks(&folder, after(0)));
        assert!(looks(&folder, after(99)));
        assert!(looks(&folder, after(99)));
        assert!(looks(&folder, later()));
        assert!(!looks(&folder, later()));
        // The wall clock was set back.
        assert!(looks(&folder, Timestamp::from_millis(0)));
    }

    #[test]
    fn a_check_that_failed_is_made_again() {
        let (_files, _elsewhere, located) = files();
        let folder = Folder::of(&located.real);
        let gone = || Err(closed(Path::new("db-wal"), "deleted or moved"));
        assert!(folder.unless_unchanged(later(), gone).is_err());
        assert!(folder.unless_unchanged(later(), gone).is_err());
        assert!(looks(&folder, later()));
    }

    #[test]
    fn a_log_that_is_deleted_moved_or_replaced_is_noticed_in_a_settled_folder() {
        for file in ["db-wal", "db-shm"] {
            for what in ["deleted", "moved", "replaced", "put back with its folder's time"] {
                let (files, elsewhere, located) = files();
                let identity = Identity::of(&located).unwrap();
                let check = || identity.check_all_at(later());
                check().unwrap();
                next_tick(elsewhere.path());
                let path = files.path().join(file);
                let before = fs::metadata(files.path()).unwrap().modified().unwrap();
                fs::rename(&path, files.path().join("moved")).unwrap();
                match what {
                    "moved" => {}
                    "deleted" => fs::remove_file(files.path().join("moved")).unwrap(),
                    _ => fs::write(&path, "y").unwrap(),
                }
                if what.ends_with("time") {
                    fs::File::open(files.path()).unwrap().set_modified(before).unwrap();
                }
                assert_eq!(check().unwrap_err().kind(), PortErrorKind::Closed, "{file} {what}");
                if what != "deleted" {
                    fs::rename(files.path().join("moved"), &path).unwrap();
                    check().unwrap();
                }
            }
        }
    }

    #[test]
    fn the_folder_being_moved_or_replaced_is_noticed() {
        let (files, elsewhere, located) = files();
        let identity = Identity::of(&located).unwrap();
        identity.check_all_at(later()).unwrap();
        let moved = elsewhere.path().join("moved");
        fs::rename(files.path(), &moved).unwrap();
        assert_eq!(identity.check_all_at(later()).unwrap_err().kind(), PortErrorKind::Closed);
        fs::create_dir(files.path()).unwrap();
        fs::copy(moved.join("db"), files.path().join("db")).unwrap();
        assert_eq!(identity.check_all_at(later()).unwrap_err().kind(), PortErrorKind::Closed);
    }
}
