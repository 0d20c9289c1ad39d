//! The one reader of arguments, which goes by the table of flags and by the word that a subcommand takes, and what it says
//! of mistakes. Reading Linkerd's arguments with clap takes 130 µs (cold, in a process of its own), lexopt's tokens take
//! 4 more than these.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

use super::Variables;
#[cfg(feature = "diagnose")]
use super::diagnosis::Diagnosis;
use super::flags::{Flag, Options, RULES, Value, flags, taken_by};
use super::subcommand::Subcommand;

/// Why reading ended early.
#[derive(Debug)]
pub(super) enum Stop {
    /// Help is asked for; `-h` asks for less of it than `--help`.
    Help {
        is_long: bool,
    },
    Version,
    /// In words, with how to write what was probably meant.
    Mistake(String),
}

impl From<String> for Stop {
    fn from(mistake: String) -> Self {
        Self::Mistake(mistake)
    }
}

/// The flags that were given with their values, in that order, and the word.
#[derive(Debug, Default)]
pub(super) struct Given<'a> {
    subcommand: Subcommand,
    /// Those that the subcommand takes.
    known: Vec<Flag>,
    flags: Vec<(Flag, &'a OsStr)>,
    /// One of those that [`Subcommand::word`] lists.
    pub(super) word: Option<&'static str>,
}

impl Given<'_> {
    /// Returns true if no flag says which rules to install.
    #[cfg(feature = "diagnose")]
    pub(super) fn is_about_no_rules(&self) -> bool {
        self.flags.iter().all(|(flag, _)| flag.heading != RULES)
    }

    /// Reads all values, and of the flags that aren't given, those that the environment has. An error names the flag or the
    /// variable.
    pub(super) fn read(&self, environment: Variables<'_>) -> Result<Options, String> {
        let mut options = Options::default();
        for (flag, value) in &self.flags {
            flag.read(&mut options, value).map_err(|reason| format!("--{} {reason}", flag.name))?;
        }
        // The environment says how to install, and not what is asked.
        #[cfg(feature = "diagnose")]
        if self.subcommand == Subcommand::Diagnose(Diagnosis::Verify) && self.is_about_no_rules() {
            return Ok(options);
        }
        for flag in self.known.iter().filter(|flag| !self.says(flag)) {
            let Some(variable) = flag.variable else { continue };
            let Some(value) = environment(variable).filter(|value| !value.is_empty()) else { continue };
            flag.read(&mut options, &value).map_err(|reason| format!("{variable} in the environment {reason}"))?;
        }
        Ok(options)
    }

    /// Returns true if a flag is given. An empty list is a list, but an empty word is none.
    fn says(&self, asked: &Flag) -> bool {
        let last = self.flags.iter().rev().find(|(flag, _)| flag.name == asked.name);
        last.is_some_and(|(flag, value)| flag.heading == RULES || !value.is_empty())
    }
}

/// Reads the arguments after a subcommand's name: `--flag value`, `--flag=value`, `-f value`, `-fvalue`, `-f=value`,
/// `-wf value` where `-w` is a switch, and after `--` words alone.
pub(super) fn parse(arguments: &[OsString], subcommand: Subcommand) -> Result<Given<'_>, Stop> {
    let given = Given {
        subcommand,
        known: taken_by(subcommand).collect(),
        flags: Vec::with_capacity(arguments.len()),
        word: None,
    };
    let reader = Reader { arguments, next: 0, given };
    reader.read().map_err(|stop| {
        let mut words = arguments.iter().filter_map(|argument| argument.to_str());
        let late = words.find(|word| subcommand == Subcommand::Install && Subcommand::from_name(word).is_some());
        match (stop, late) {
            (Stop::Mistake(_), Some(late)) => {
                Stop::Mistake(format!("{late}: a subcommand comes first, before all flags: proxy-init {late} ..."))
            }
            (stop, _) => stop,
        }
    })
}

struct Reader<'a> {
    arguments: &'a [OsString],
    next: usize,
    given: Given<'a>,
}

impl<'a> Reader<'a> {
    /// Reads everything, or up to a flag that asks for help or the version.
    fn read(mut self) -> Result<Given<'a>, Stop> {
        let mut has_flags = true;
        while let Some(argument) = self.advance() {
            match argument.as_bytes() {
                b"--" if has_flags => has_flags = false,
                [b'-', b'-', long @ ..] if has_flags => self.read_long(long)?,
                [b'-', shorts @ ..] if has_flags && !shorts.is_empty() => self.read_shorts(shorts)?,
                _ => self.read_word(argument)?,
            }
        }
        match self.given.subcommand.word().and_then(|word| word.missing) {
            Some(missing) if self.given.word.is_none() => Err(Stop::Mistake(missing.to_owned())),
            _ => Ok(self.given),
        }
    }

    fn advance(&mut self) -> Option<&'a OsStr> {
        let argument = self.arguments.get(self.next)?;
        self.next += 1;
        Some(argument)
    }

    fn read_long(&mut self, argument: &'a [u8]) -> Result<(), Stop> {
        let mut parts = argument.splitn(2, |&byte| byte == b'=');
        let name = parts.next().unwrap_or_default();
        match self.find(|flag| flag.names().any(|own| own.as_bytes() == name)) {
            Some(flag) => Ok(self.read_value(flag, parts.next())?),
            None if name == HELP.as_bytes() => Err(Stop::Help { is_long: true }),
            None if name == VERSION.as_bytes() && self.given.subcommand.has_version() => Err(Stop::Version),
            None => Err(self.explain_unknown(&format!("--{}", OsStr::from_bytes(name).display())).into()),
        }
    }

    /// Reads what follows a dash: switches, and at the end perhaps a flag with its value.
    fn read_shorts(&mut self, mut shorts: &'a [u8]) -> Result<(), Stop> {
        while let [name, rest @ ..] = shorts {
            let Some(flag) = self.find(|flag| flag.short == Some(char::from(*name))) else {
                return Err(match name {
                    b'h' => Stop::Help { is_long: false },
                    b'V' if self.given.subcommand.has_version() => Stop::Version,
                    _ => {
                        let name = OsStr::from_bytes(shorts).to_string_lossy().chars().next().unwrap_or_default();
                        self.explain_unknown(&format!("-{name}")).into()
                    }
                });
            };
            let (joined, after): (_, &[u8]) = match rest {
                [b'=', value @ ..] => (Some(value), &[]),
                _ if flag.is_switch() => (None, rest),
                [] => (None, &[]),
                value => (Some(value), &[]),
            };
            self.read_value(flag, joined)?;
            shorts = after;
        }
        Ok(())
    }

    /// The flag, if the subcommand takes it.
    fn find(&self, is_meant: impl Fn(&Flag) -> bool) -> Option<Flag> {
        self.given.known.iter().find(|flag| is_meant(flag)).copied()
    }

    /// Reads a flag's value, which is the next argument unless it is `joined` to the flag.
    fn read_value(&mut self, flag: Flag, joined: Option<&'a [u8]>) -> Result<(), String> {
        let value = match (joined, flag.value) {
            (Some(value), _) => Some(OsStr::from_bytes(value)),
            (None, _) if flag.is_switch() => Some(OsStr::new("true")),
            (None, Value::Word(..) | Value::Path(..)) => self.advance().filter(|value| !is_flag(value)),
            (None, _) => self.advance(),
        };
        let value = value.ok_or_else(|| format!("--{} <{}>: a value is missing", flag.name, flag.placeholder()))?;
        self.given.flags.push((flag, value));
        Ok(())
    }

    fn read_word(&mut self, argument: &OsStr) -> Result<(), String> {
        let Some(word) = self.given.subcommand.word().filter(|_| self.given.word.is_none()) else {
            return Err(self.explain_stray(&argument.to_string_lossy()));
        };
        self.given.word = word.words.iter().copied().find(|&word| argument == word);
        if self.given.word.is_none() {
            let (what, words) = (word.what(), word.words.join(", "));
            return Err(format!("{what} \"{}\" is invalid: use {words}", argument.display()));
        }
        Ok(())
    }

    fn explain_unknown(&self, typed: &str) -> String {
        let subcommand = self.given.subcommand;
        if flags().any(|flag| flag.spellings().any(|name| name == typed)) {
            return format!("{} does not take {typed}: leave it out", subcommand.name());
        }
        let names = self.given.known.iter().flat_map(Flag::names).chain([HELP]);
        match typed.strip_prefix("--").and_then(|typed| similar(typed, names)) {
            Some(similar) => format!("unknown flag {typed}, did you mean --{similar}?"),
            None => format!("unknown flag {typed}"),
        }
    }

    /// Says what is wrong with an argument that is neither a flag nor a flag's value nor the word.
    fn explain_stray(&self, stray: &str) -> String {
        if self.given.subcommand != Subcommand::Install || !self.given.flags.is_empty() {
            return format!(
                "unexpected argument \"{stray}\": a boolean takes its value after \"=\", as in --ipv6=false, and a list has \
                 no blanks"
            );
        }
        match similar(stray, Subcommand::names()) {
            Some(similar) => format!("unknown subcommand \"{stray}\", did you mean {similar}?"),
            None => {
                let names: Vec<&str> = Subcommand::names().collect();
                format!("unknown subcommand \"{stray}\": there are {}", names.join(", "))
            }
        }
    }
}

const HELP: &str = "help";
const VERSION: &str = "version";

/// Returns true if the argument is a flag, unless the flag before takes it as its value.
fn is_flag(argument: &OsStr) -> bool {
    argument.len() > 1 && argument.as_bytes().starts_with(b"-")
}

/// The most similar name, if it is similar enough to have been meant.
fn similar<'a>(typed: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let likely = names.map(|name| (strsim::jaro(typed, name), name)).filter(|(likeness, _)| *likeness > 0.7);
    likely.max_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ruleset::testing::random;

    use super::*;

    /// The flags by name with their values, and the word.
    type Read<'a> = (Vec<(&'a str, &'a OsStr)>, Option<&'a str>);

    fn read(arguments: &[OsString], subcommand: Subcommand) -> Result<Read<'_>, String> {
        match parse(arguments, subcommand) {
            Ok(given) => {
                let flags = given.flags.into_iter().map(|(flag, value)| (flag.name, value));
                Ok((flags.collect(), given.word))
            }
            Err(Stop::Mistake(mistake)) => Err(mistake),
            Err(other) => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn every_flag_is_read_where_it_is_taken_and_nowhere_else() {
        for flag in flags() {
            for subcommand in Subcommand::all() {
                let word = subcommand.word().map(|word| word.words[0]);
                let flags = flag.spellings().map(|name| format!("{name}=true"));
                for argument in flags {
                    let arguments: Vec<OsString> =
                        word.into_iter().chain([argument.as_str()]).map(Into::into).collect();
                    let read = read(&arguments, subcommand);
                    if taken_by(subcommand).any(|taken| taken.name == flag.name) {
                        assert_eq!(read, Ok((vec![(flag.name, OsStr::new("true"))], word)), "{arguments:?}");
                    } else {
                        let refused = read.unwrap_err();
                        assert!(refused.contains(" does not take "), "{arguments:?}: {refused}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_dash_may_begin_a_number_but_no_word() {
        let read = |line: &str| {
            let arguments: Vec<OsString> = line.split(' ').map(Into::into).collect();
            read(&arguments, Subcommand::Install).map(|(flags, _)| format!("{flags:?}"))
        };
        for (line, want) in [
            ("-u -1", r#"[("proxy-uid", "-1")]"#),
            ("--proxy-uid --", r#"[("proxy-uid", "--")]"#),
            ("-wu-1 --", r#"[("use-wait-flag", "true"), ("proxy-uid", "-1")]"#),
            ("-w=false", r#"[("use-wait-flag", "false")]"#),
            ("-p= -p=1=2", r#"[("incoming-proxy-port", ""), ("incoming-proxy-port", "1=2")]"#),
            ("--netns - --ipv6=", r#"[("netns", "-"), ("ipv6", "")]"#),
        ] {
            assert_eq!(read(line).as_deref(), Ok(want), "{line}");
        }
        for (line, want) in [
            ("--netns --ipv6", "--netns <PATH>: a value is missing"),
            ("--iptables-mode -5", "--iptables-mode <MODE>: a value is missing"),
            ("-wp", "--incoming-proxy-port <PORT>: a value is missing"),
            ("-5", "unknown flag -5"),
            ("-wé", "unknown flag -é"),
            ("-wfalse", "unknown flag -f"),
            ("-", "unknown subcommand \"-\": there are"),
            ("--helq", "unknown flag --helq, did you mean --help?"),
            ("--mode nft", "unknown flag --mode"),
        ] {
            let refused = read(line).unwrap_err();
            assert!(refused.starts_with(want), "{line}: {refused}");
        }
    }

    #[test]
    fn help_and_the_version_may_be_asked_for_anywhere_before_a_mistake() {
        let asked = |line: &str, subcommand| {
            let arguments: Vec<OsString> = line.split(' ').map(Into::into).collect();
            match parse(&arguments, subcommand) {
                Err(Stop::Help { is_long: true }) => "help",
                Err(Stop::Help { is_long: false }) => "short help",
                Err(Stop::Version) => "version",
                Ok(_) => "",
                Err(Stop::Mistake(_)) => "refused",
            }
        };
        for subcommand in Subcommand::all() {
            assert_eq!(asked("--help", subcommand), "help");
            assert_eq!(asked("-h --bogus", subcommand), "short help");
            assert_eq!(asked("--bogus -h", subcommand), "refused");
            assert_eq!(asked("-- --help", subcommand), "refused");
            let version = if subcommand.has_version() { "version" } else { "refused" };
            assert_eq!([asked("-V", subcommand), asked("--version", subcommand)], [version; 2]);
        }
        assert_eq!(asked("-p x -wh", Subcommand::Install), "short help");
        assert_eq!(asked("-p --help", Subcommand::Install), "");
    }

    /// A flag with a value, in one of its spellings.
    fn spelled() -> impl Strategy<Value = (Flag, Vec<u8>, Vec<OsString>)> {
        let value = || prop::collection::vec(any::<u8>().prop_filter("", |byte| *byte != 0), 0..6);
        let flags: Vec<Flag> = taken_by(Subcommand::Install).collect();
        (prop::sample::select(flags), value(), any::<prop::sample::Index>(), 0..3).prop_map(
            |(flag, mut value, spelling, way)| {
                let spellings: Vec<String> = flag.spellings().collect();
                let name = spelling.get(&spellings).as_bytes();
                let joined =
                    |sign: &[u8], value: &[u8]| vec![OsStr::from_bytes(&[name, sign, value].concat()).to_owned()];
                let (is_switch, is_short) = (flag.is_switch(), !name.starts_with(b"--"));
                let is_taken_for_a_flag =
                    is_flag(OsStr::from_bytes(&value)) && matches!(flag.value, Value::Word(..) | Value::Path(..));
                let arguments = match way {
                    0 if is_switch => {
                        value = b"true".to_vec();
                        joined(b"", b"")
                    }
                    0 if !is_taken_for_a_flag => vec![OsStr::from_bytes(name).into(), OsStr::from_bytes(&value).into()],
                    1 if is_short && !is_switch && !value.is_empty() && value[0] != b'=' => joined(b"", &value),
                    _ => joined(b"=", &value),
                };
                (flag, value, arguments)
            },
        )
    }

    proptest! {
        #![proptest_config(random(256))]

        #[test]
        fn every_spelling_arrives(flags in prop::collection::vec(spelled(), 0..6)) {
            let arguments: Vec<OsString> = flags.iter().flat_map(|(.., arguments)| arguments.clone()).collect();
            let want: Vec<_> = flags.iter().map(|(flag, value, _)| (flag.name, OsStr::from_bytes(value))).collect();
            prop_assert_eq!(read(&arguments, Subcommand::Install), Ok((want, None)));
        }

        #[test]
        fn whatever_is_typed_gets_an_answer(
            subcommand in prop::sample::select(Subcommand::all().collect::<Vec<_>>()),
            arguments in prop::collection::vec(
                prop_oneof![
                    "(-|--|-[a-zA-Z=]{0,4}|--[a-z-]{0,20}=?[a-z0-9,]{0,4}|[a-z0-9,]{0,6})".prop_map(OsString::from),
                    prop::collection::vec(any::<u8>(), 0..6).prop_map(|bytes| OsStr::from_bytes(&bytes).to_owned()),
                ],
                0..6,
            )
        ) {
            match parse(&arguments, subcommand) {
                Ok(given) => { let _ = given.read(&|_| None); }
                Err(Stop::Mistake(text)) => prop_assert!(!text.is_empty()),
                Err(_) => {}
            }
        }
    }
}
