//! Flags and subcommands as values. Arguments (given.rs), help and completions (cli/) all go by these values;
//! flags/install.rs has those of installing and uninstalling, diagnose/questions.rs those of the other subcommands.

mod exit;
pub mod given;
pub mod install;
mod pod_namespace;
pub mod values;

pub use self::exit::Exit;
pub use self::given::{Given, Stop, read};
use crate::config::settings::{Form, SETTINGS, Setting};

/// The program's name, which stands for installing.
pub const PROGRAM: &str = "proxy-init";

/// A subcommand, and its texts in help.
#[derive(Debug)]
pub struct Subcommand {
    /// The name on the command line; installing has that of the program.
    pub name: &'static str,
    pub about: &'static str,
    /// More than that, in lines that fit a terminal.
    pub details: &'static str,
    pub word: Option<Word>,
    /// The command lines that it is called by, where it has several; clap would show one.
    pub usages: &'static [&'static str],
    /// True if the subcommand takes --version, as those do that are programs by themselves.
    pub has_version: bool,
    /// Its flags, in the order in which help shows them.
    pub flags: fn() -> Vec<Flag>,
    /// Command lines, each with its effect.
    pub examples: &'static [(&'static str, &'static str)],
    pub exits: &'static [(Exit, &'static str)],
}

/// The word that a subcommand takes beside flags.
#[derive(Debug)]
pub struct Word {
    pub placeholder: &'static str,
    /// Those that it may be.
    pub words: fn() -> Vec<&'static str>,
    /// The message if it is missing; none if it need not be there.
    pub missing: Option<&'static str>,
    pub help: &'static str,
}

impl Word {
    /// The placeholder as help shows it.
    pub fn in_help(&self) -> String {
        match self.missing {
            Some(_) => format!("<{}>", self.placeholder),
            None => format!("[{}]", self.placeholder),
        }
    }
}

/// A subcommand without flags that takes no word.
pub const SUBCOMMAND: Subcommand = Subcommand {
    name: "",
    about: "",
    details: "",
    word: None,
    usages: &[],
    has_version: false,
    flags: Vec::new,
    examples: &[],
    exits: &[],
};

impl Subcommand {
    /// Returns true for the program itself, which installs.
    pub fn is_program(&self) -> bool {
        self.name == PROGRAM
    }

    /// A mistake in its arguments, with where its help is.
    pub fn see_help(&self, mistake: &str) -> String {
        if self.is_program() {
            format!("{mistake} (see proxy-init --help)")
        } else {
            format!("{mistake} (see proxy-init {} --help)", self.name)
        }
    }
}

/// A flag: its names, how its value is given, and its help.
#[derive(Debug, Clone, Copy)]
pub struct Flag {
    /// The long name; names are without dashes.
    pub name: &'static str,
    pub alias: Option<&'static str>,
    pub short: Option<char>,
    /// The variable of the environment that counts where the flag isn't given; that of a setting follows from its name.
    pub variable: Option<&'static str>,
    pub form: ValueForm,
    /// The name of its value in help.
    pub placeholder: &'static str,
    /// Words that its value may be, for help and completions; none where it is something else.
    pub words: fn() -> Vec<&'static str>,
    pub is_required: bool,
    pub heading: &'static str,
    pub help: &'static str,
}

/// The way in which a flag's value is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueForm {
    /// `--flag WORD` or `--flag=WORD`.
    Word,
    /// The same; it may begin with a dash, as numbers and lists do.
    Number,
    /// The same as a word; it need not be UTF-8.
    Path,
    /// `--flag`, which is true, or `--flag=VALUE`.
    Switch,
}

/// The heading of the flags that say which rules to install.
pub const RULES: &str = "Rules";

/// The common parts of most flags.
pub const FLAG: Flag = Flag {
    name: "",
    alias: None,
    short: None,
    variable: None,
    form: ValueForm::Word,
    placeholder: "",
    words: Vec::new,
    is_required: false,
    heading: RULES,
    help: "",
};

impl Flag {
    /// The flag of each setting of rules.
    pub fn about_rules() -> impl Iterator<Item = Self> {
        SETTINGS.iter().map(Self::of)
    }

    fn of(setting: &'static Setting) -> Self {
        Self {
            name: setting.flag,
            alias: setting.alias,
            short: setting.short,
            form: if setting.form == Form::Switch { ValueForm::Switch } else { ValueForm::Number },
            placeholder: setting.placeholder,
            is_required: setting.is_required,
            help: setting.help,
            ..FLAG
        }
    }

    pub fn is_switch(&self) -> bool {
        self.form == ValueForm::Switch
    }

    /// Its long names.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        [Some(self.name), self.alias].into_iter().flatten()
    }

    /// Its long and short names as they are typed.
    pub fn spellings(&self) -> impl Iterator<Item = String> {
        self.names().map(|name| format!("--{name}")).chain(self.short.map(|short| format!("-{short}")))
    }
}
