//! The share of a set of connections that gets somewhere, by the questions that the rules leave open.

/// The most questions that are told of one doubt.
const MOST_QUESTIONS: usize = 8;

/// Shares are numbers modulo this prime.
const PRIME: u64 = (1 << 61) - 1;

/// Of a set of connections, the share that gets somewhere by some answers to open questions.
///
/// All of it has the share 1. An open question divides a share into one for each answer, which add up to it, at random:
/// so where shares of the same connections meet and add up to 1, they get there whatever the answers are. That takes
/// neither memory nor time for the questions on the way, however many they are; that other shares add up to 1 by chance
/// happens once in 2^61 times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doubt {
    share: u64,
    /// The first of the questions on which it depends, by their places in [`Walk::questions`](crate::Walk::questions).
    pub questions: Vec<usize>,
}

impl Doubt {
    /// All of the connections get there.
    pub(super) const NONE: Self = Self { share: 1, questions: Vec::new() };

    pub fn is_none(&self) -> bool {
        self.share == 1
    }

    /// Returns true if both are of the same answers.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.share == other.share
    }

    /// Its parts by each of so many answers to a question.
    pub(super) fn divided(&self, question: usize, answers: usize) -> Vec<Self> {
        let mut rest = 1;
        let mut parts = Vec::with_capacity(answers);
        for answer in 1..=answers {
            let part = if answer < answers { random(question, answer) } else { rest };
            rest = subtract(rest, part);
            parts.push(self.part(question, part));
        }
        parts
    }

    /// The part by which a question is answered with yes.
    pub(super) fn affirmed(&self, question: usize) -> Self {
        self.part(question, random(question, 1))
    }

    /// The part by which a question isn't answered with yes.
    pub(super) fn denied(&self, question: usize) -> Self {
        self.part(question, subtract(1, random(question, 1)))
    }

    fn part(&self, question: usize, part: u64) -> Self {
        let mut doubt = Self { share: multiply(self.share, part), questions: self.questions.clone() };
        doubt.note([question]);
        doubt
    }

    /// Adds another share of the same connections.
    pub(super) fn add(&mut self, other: &Self) {
        // The same answers twice are no more than once.
        if self.is_none() || self.is(other) {
            return;
        }
        self.share = if other.is_none() { 1 } else { add(self.share, other.share) };
        if self.is_none() {
            self.questions.clear();
        } else {
            self.note(other.questions.iter().copied());
        }
    }

    /// Adds questions; of many, the first ones are kept.
    fn note(&mut self, questions: impl IntoIterator<Item = usize>) {
        for question in questions {
            if let Err(place) = self.questions.binary_search(&question)
                && place < MOST_QUESTIONS
            {
                self.questions.truncate(MOST_QUESTIONS - 1);
                self.questions.insert(place, question);
            }
        }
    }
}

fn add(one: u64, other: u64) -> u64 {
    (one + other) % PRIME
}

fn subtract(from: u64, other: u64) -> u64 {
    (from + PRIME - other) % PRIME
}

fn multiply(one: u64, other: u64) -> u64 {
    (u128::from(one) * u128::from(other) % u128::from(PRIME)) as u64
}

/// A number that nothing else has, but the same in each run (splitmix64).
fn random(question: usize, answer: usize) -> u64 {
    let mut bits = (question as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(answer as u64);
    for factor in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
        bits = (bits ^ bits >> 30).wrapping_mul(factor);
    }
    // Neither all nor nothing.
    (bits ^ bits >> 31) % (PRIME - 2) + 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(doubts: &[&Doubt]) -> Doubt {
        let mut sum = doubts[0].clone();
        doubts[1..].iter().for_each(|doubt| sum.add(doubt));
        sum
    }

    #[test]
    fn all_answers_together_are_no_doubt() {
        let [yes, no] = Doubt::NONE.divided(1, 2).try_into().unwrap();
        assert!(!yes.is_none() && !no.is_none() && !yes.is(&no));
        assert!(sum(&[&yes, &no]).is_none() && sum(&[&no, &yes]).questions.is_empty());
        assert!(no.is(&Doubt::NONE.denied(1)));
        // Of two questions, all four, or the rest of one once the other is answered either way.
        let [yes_yes, yes_no] = yes.divided(2, 2).try_into().unwrap();
        assert!(sum(&[&yes_yes, &yes_no]).is(&yes));
        assert!(sum(&[&yes_yes, &no, &yes_no]).is_none());
        // Of three answers, no two are all.
        let three = Doubt::NONE.divided(3, 3);
        assert!(!sum(&[&three[0], &three[1]]).is_none());
        assert!(sum(&[&three[2], &three[0], &three[1]]).is_none());
        // Others have nothing to do with each other.
        assert!(!sum(&[&yes, &Doubt::NONE.denied(2)]).is_none());
        assert!(!sum(&[&yes, &yes]).is_none() && sum(&[&yes, &yes]).is(&yes));
        assert!(sum(&[&yes, &Doubt::NONE]).is_none() && sum(&[&Doubt::NONE, &yes]).is_none());
    }

    #[test]
    fn the_first_questions_are_told() {
        let mut doubt = Doubt::NONE;
        for question in (1..=20).rev() {
            doubt = doubt.denied(question);
        }
        assert_eq!(doubt.questions, [1, 2, 3, 4, 5, 6, 7, 8]);
        let [yes, no] = Doubt::NONE.divided(30, 2).try_into().unwrap();
        assert_eq!(sum(&[&yes, &no.denied(31)]).questions, [30, 31]);
    }
}
