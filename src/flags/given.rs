//! The one reader of arguments, and its messages about mistakes. Reading Linkerd's arguments with clap takes 130 µs
//! (cold, in a process of its own), lexopt's tokens take 4 more than these.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use super::{Flag, RULES, Subcommand, ValueForm};
use crate::config::settings::{PartialConfig, SETTINGS};

/// The variables of the environment by their names.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The reason why reading ended early.
#[derive(Debug)]
pub enum Stop {
    /// Help is asked for; `-h` asks for less of it than `--help`.
    Help {
        is_long: bool,
    },
    Version,
    /// In words, with the probably intended spelling.
    Mistake(String),
}

impl From<String> for Stop {
    fn from(mistake: String) -> Self {
        Self::Mistake(mistake)
    }
}

/// The arguments after a subcommand's name: its flags with their values, and its word.
#[derive(Clone)]
pub struct Given<'a> {
    pub subcommand: &'static Subcommand,
    /// One of those that the subcommand's [`Word`](super::Word) lists; empty if there is none.
    pub word: &'static str,
    /// The flags that the subcommand takes.
    pub taken: Vec<Flag>,
    /// Flags by name with their values, in the order of the arguments.
    pub values: Vec<(&'static str, &'a OsStr)>,
    pub environment: Variables<'a>,
}

impl Given<'_> {
    /// The settings of rules.
    pub fn rules(&self) -> Result<PartialConfig, String> {
        let mut partial = PartialConfig::default();
        for setting in SETTINGS {
            self.each_text(setting.flag, |text| {
                setting.read(&mut partial, text).map_err(|invalid| invalid.to_string())
            })?;
        }
        Ok(partial)
    }

    /// The value of a flag, as `read` has it. Of several, each is read, and the last counts.
    pub fn value<T>(&self, name: &str, mut read: impl FnMut(&str) -> Result<T, String>) -> Result<Option<T>, String> {
        let mut last = None;
        self.each_text(name, |text| {
            last = Some(read(text)?);
            Ok(())
        })?;
        Ok(last)
    }

    /// Returns true if a switch is on.
    pub fn is_on(&self, name: &str) -> Result<bool, String> {
        Ok(self.value(name, super::values::boolean)?.unwrap_or_default())
    }

    /// The path that is a flag's value.
    ///
    /// # Errors
    /// It is empty: of a script whose variable is not set, most likely, and the default may be the node's.
    pub fn path(&self, name: &str, meaning: &str) -> Result<Option<PathBuf>, String> {
        let mut last = None;
        self.each(name, |path| {
            if path.is_empty() {
                return Err(format!("is empty: name {meaning}"));
            }
            last = Some(PathBuf::from(path));
            Ok(())
        })?;
        Ok(last)
    }

    fn each_text(&self, name: &str, mut read: impl FnMut(&str) -> Result<(), String>) -> Result<(), String> {
        self.each(name, |value| match value.to_str() {
            Some(text) => read(text),
            None => Err(format!("\"{}\" is not UTF-8 text", value.display())),
        })
    }

    /// Hands each value of a flag to `read` or, if none is given, the environment's. An empty list is a list, but an
    /// empty word is none.
    fn each(&self, name: &str, mut read: impl FnMut(&OsStr) -> Result<(), String>) -> Result<(), String> {
        let Some(flag) = self.taken.iter().find(|flag| flag.name == name) else {
            return Ok(());
        };
        let mut is_given = false;
        for (_, value) in self.values.iter().filter(|(given, _)| *given == name) {
            read(value).map_err(|reason| format!("--{name} {reason}"))?;
            is_given = flag.heading == RULES || !value.is_empty();
        }
        let own = (flag.heading == RULES).then(|| variable(name));
        match own.as_deref().or(flag.variable) {
            Some(variable) if !is_given => match (self.environment)(variable).filter(|value| !value.is_empty()) {
                Some(value) => read(&value).map_err(|reason| format!("{variable} in the environment {reason}")),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }
}

/// The variable of the environment that stands for the flag of a setting.
pub fn variable(flag: &str) -> String {
    format!("PROXY_INIT_{}", flag.to_ascii_uppercase().replace('-', "_"))
}

/// Reads the arguments after a subcommand's name: `--flag value`, `--flag=value`, `-f value`, `-fvalue`, `-f=value`,
/// `-wf value` where `-w` is a switch, and after `--` words alone. Messages about mistakes name those of `all`
/// subcommands that may have been meant.
pub fn read<'a>(
    arguments: &'a [OsString],
    subcommand: &'static Subcommand,
    all: fn() -> Vec<&'static Subcommand>,
    environment: Variables<'a>,
) -> Result<Given<'a>, Stop> {
    let values = Vec::with_capacity(arguments.len());
    let given = Given { subcommand, word: "", taken: (subcommand.flags)(), values, environment };
    let reader = Reader { arguments, next: 0, all, given };
    reader.read()
}

struct Reader<'a> {
    arguments: &'a [OsString],
    next: usize,
    all: fn() -> Vec<&'static Subcommand>,
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
        match self.given.subcommand.word.as_ref().and_then(|word| word.missing) {
            Some(missing) if self.given.word.is_empty() => Err(Stop::Mistake(missing.to_owned())),
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
            None if name == VERSION.as_bytes() && self.given.subcommand.has_version => Err(Stop::Version),
            None => Err(self.explain_unknown(&format!("--{}", OsStr::from_bytes(name).display())).into()),
        }
    }

    /// Reads the letters after a dash: switches, and at the end perhaps a flag with its value.
    fn read_shorts(&mut self, mut shorts: &'a [u8]) -> Result<(), Stop> {
        while let [name, rest @ ..] = shorts {
            let Some(flag) = self.find(|flag| flag.short == Some(char::from(*name))) else {
                return Err(match name {
                    b'h' => Stop::Help { is_long: false },
                    b'V' if self.given.subcommand.has_version => Stop::Version,
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
        self.given.taken.iter().find(|flag| is_meant(flag)).copied()
    }

    /// Reads a flag's value, which is the next argument unless it is `joined` to the flag.
    fn read_value(&mut self, flag: Flag, joined: Option<&'a [u8]>) -> Result<(), String> {
        let value = match (joined, flag.form) {
            (Some(value), _) => Some(OsStr::from_bytes(value)),
            (None, ValueForm::Switch) => Some(OsStr::new("true")),
            (None, ValueForm::Word | ValueForm::Path) => self.advance().filter(|value| !is_flag(value)),
            (None, ValueForm::Number) => self.advance(),
        };
        let value = value.ok_or_else(|| format!("--{} <{}>: a value is missing", flag.name, flag.placeholder))?;
        self.given.values.push((flag.name, value));
        Ok(())
    }

    fn read_word(&mut self, argument: &OsStr) -> Result<(), String> {
        let Some(word) = self.given.subcommand.word.as_ref().filter(|_| self.given.word.is_empty()) else {
            return Err(self.explain_stray(&argument.to_string_lossy()));
        };
        let words = (word.words)();
        let Some(known) = words.iter().find(|&&word| argument == word) else {
            let (name, words) = (word.in_help(), words.join(", "));
            return Err(format!("{name} \"{}\" is invalid: use {words}", argument.display()));
        };
        self.given.word = known;
        Ok(())
    }

    fn explain_unknown(&self, typed: &str) -> String {
        let is_taken = |name: &str| self.given.taken.iter().any(|flag| Some(flag.name) == name.split(' ').next());
        let meant = OTHER_NAMES.iter().find(|(other, meant)| *other == typed && is_taken(meant));
        let mut all = (self.all)().into_iter().flat_map(|subcommand| (subcommand.flags)());
        if all.any(|flag| flag.spellings().any(|name| name == typed)) {
            let advice = meant.map_or("leave it out".to_owned(), |(_, meant)| format!("write --{meant}"));
            return format!("{} does not take {typed}: {advice}", self.given.subcommand.name);
        }
        if let Some((_, meant)) = meant {
            return format!("unknown flag {typed}: write --{meant}");
        }
        let names = self.given.taken.iter().flat_map(Flag::names).chain([HELP]);
        match typed.strip_prefix("--").and_then(|typed| similar(typed, names)) {
            Some(similar) => format!("unknown flag {typed}, did you mean --{similar}?"),
            None => format!("unknown flag {typed}"),
        }
    }

    /// Names the defect of an argument that is neither a flag nor a flag's value nor the word.
    fn explain_stray(&self, stray: &str) -> String {
        let named = (self.all)().into_iter().filter(|subcommand| !subcommand.is_program());
        let names: Vec<&str> = named.map(|subcommand| subcommand.name).collect();
        let is_program = self.given.subcommand.is_program();
        if is_program && names.contains(&stray) {
            return format!("{stray}: a subcommand comes first, before all flags: proxy-init {stray} ...");
        }
        if is_program && stray == "install" {
            return "proxy-init installs when given its flags, as in proxy-init -p 4143 -o 4140".to_owned();
        }
        if self.given.taken.iter().any(|flag| flag.name == "to") && stray.parse::<SocketAddr>().is_ok() {
            return format!("unexpected argument \"{stray}\": write --to {stray}");
        }
        if !is_program || !self.given.values.is_empty() {
            return format!(
                "unexpected argument \"{stray}\": a boolean takes its value after \"=\", as in --ipv6=false, and a list has \
                 no blanks"
            );
        }
        match similar(stray, names.iter().copied()) {
            _ if stray == "version" => "unknown subcommand \"version\": write --version".to_owned(),
            _ if stray == "status" => "unknown subcommand \"status\", did you mean check?".to_owned(),
            Some(similar) => format!("unknown subcommand \"{stray}\", did you mean {similar}?"),
            None => format!("unknown subcommand \"{stray}\": there are {}", names.join(", ")),
        }
    }
}

/// The flags that users of kubectl and of Linkerd's annotations type, and the flags that they mean.
const OTHER_NAMES: [(&str, &str); 4] = [
    ("--json", "output json"),
    ("-o", "output json"),
    ("--skip-inbound-ports", "inbound-ports-to-ignore"),
    ("--skip-outbound-ports", "outbound-ports-to-ignore"),
];

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
    use crate::cli::all;
    use crate::flags::install::INSTALL;

    /// The flags by name with their values, and the word.
    type Read<'a> = (Vec<(&'a str, &'a OsStr)>, Option<&'a str>);

    fn parse<'a>(arguments: &'a [OsString], subcommand: &'static Subcommand) -> Result<Given<'a>, Stop> {
        super::read(arguments, subcommand, all, &|_| None)
    }

    fn read<'a>(arguments: &'a [OsString], subcommand: &'static Subcommand) -> Result<Read<'a>, String> {
        match parse(arguments, subcommand) {
            Ok(given) => Ok((given.values, Some(given.word).filter(|word| !word.is_empty()))),
            Err(Stop::Mistake(mistake)) => Err(mistake),
            Err(other) => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn every_flag_is_read_where_it_is_taken_and_nowhere_else() {
        for flag in all().into_iter().flat_map(|subcommand| (subcommand.flags)()) {
            for subcommand in all() {
                let word = subcommand.word.as_ref().map(|word| (word.words)()[0]);
                let flags = flag.spellings().map(|name| format!("{name}=true"));
                for argument in flags {
                    let arguments: Vec<OsString> =
                        word.into_iter().chain([argument.as_str()]).map(Into::into).collect();
                    let read = read(&arguments, subcommand);
                    if (subcommand.flags)().iter().any(|taken| taken.name == flag.name) {
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
            read(&arguments, &INSTALL).map(|(flags, _)| format!("{flags:?}"))
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
        let asked = |line: &str, subcommand: &'static Subcommand| {
            let arguments: Vec<OsString> = line.split(' ').map(Into::into).collect();
            match parse(&arguments, subcommand) {
                Err(Stop::Help { is_long: true }) => "help",
                Err(Stop::Help { is_long: false }) => "short help",
                Err(Stop::Version) => "version",
                Ok(_) => "",
                Err(Stop::Mistake(_)) => "refused",
            }
        };
        for subcommand in all() {
            assert_eq!(asked("--help", subcommand), "help");
            assert_eq!(asked("-h --bogus", subcommand), "short help");
            assert_eq!(asked("--bogus -h", subcommand), "refused");
            assert_eq!(asked("-- --help", subcommand), "refused");
            let version = if subcommand.has_version { "version" } else { "refused" };
            assert_eq!([asked("-V", subcommand), asked("--version", subcommand)], [version; 2]);
        }
        assert_eq!(asked("-p x -wh", &INSTALL), "short help");
        assert_eq!(asked("-p --help", &INSTALL), "");
    }

    /// A flag with a value, in one of its spellings.
    fn spelled() -> impl Strategy<Value = (Flag, Vec<u8>, Vec<OsString>)> {
        let value = || prop::collection::vec(any::<u8>().prop_filter("", |byte| *byte != 0), 0..6);
        let flags = (INSTALL.flags)();
        (prop::sample::select(flags), value(), any::<prop::sample::Index>(), 0..3).prop_map(
            |(flag, mut value, spelling, way)| {
                let spellings: Vec<String> = flag.spellings().collect();
                let name = spelling.get(&spellings).as_bytes();
                let joined =
                    |sign: &[u8], value: &[u8]| vec![OsStr::from_bytes(&[name, sign, value].concat()).to_owned()];
                let (is_switch, is_short) = (flag.is_switch(), !name.starts_with(b"--"));
                let is_taken_for_a_flag =
                    is_flag(OsStr::from_bytes(&value)) && matches!(flag.form, ValueForm::Word | ValueForm::Path);
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
            prop_assert_eq!(read(&arguments, &INSTALL), Ok((want, None)));
        }

        #[test]
        fn whatever_is_typed_gets_an_answer(
            subcommand in prop::sample::select(all()),
            arguments in prop::collection::vec(
                prop_oneof![
                    "(-|--|-[a-zA-Z=]{0,4}|--[a-z-]{0,20}=?[a-z0-9,]{0,4}|[a-z0-9,]{0,6})".prop_map(OsString::from),
                    prop::collection::vec(any::<u8>(), 0..6).prop_map(|bytes| OsStr::from_bytes(&bytes).to_owned()),
                ],
                0..6,
            )
        ) {
            match parse(&arguments, subcommand) {
                Ok(given) => { let _ = given.rules(); }
                Err(Stop::Mistake(text)) => prop_assert!(!text.is_empty()),
                Err(_) => {}
            }
        }
    }
}
