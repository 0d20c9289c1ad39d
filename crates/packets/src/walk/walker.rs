//! Takes sets of connections through base chains.

use crate::found::{Found, Line};
use crate::rules::flags::CtState;
use crate::rules::{Action, Chain, Effect, Family, Field, Hook, Intervals, Kind, Policy, Rule, Table, address};
use crate::walk::connections::{Connections, Meeting};
use crate::walk::evaluate::ask;
use crate::walk::order::{Orders, Slot, is_one_table, orders, places};
use crate::walk::state::{Side, State, merged};
use crate::walk::step::{Assumption, Fate, Matched, Open, Outcome, Packet, Place, Question, Reason, Step};

/// The kernel allows 16 jumps (`NFT_JUMP_STACK_SIZE`); what goes on for longer is no ruleset of the kernel's.
const DEEPEST: usize = 32;
/// How many rules are asked in a walk before jumps are not followed any more. Chains that jump to the next several
/// times each would take for ever otherwise; 10,000 rules take a few times as many steps.
const MOST_ASKED: usize = 1_000_000;
/// When more sets of connections than this have left a base chain, they are taken together.
const MOST_LEFT: usize = 64;

/// The chain that connections should get to.
#[derive(Debug, Clone, Copy)]
pub struct Watched<'g> {
    /// Its table, or one of the same name, family and subsystem.
    pub table: &'g Table,
    /// The chain.
    pub chain: &'g str,
}

impl Watched<'_> {
    fn is(&self, table: &Table, chain: &Chain) -> bool {
        chain.name == *self.chain && self.table.is(table)
    }
}

/// What has become of connections on their way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Walk<'a> {
    /// Everything that was decided about them on the way, in the order in which the kernel does.
    pub decisions: Vec<Outcome<'a>>,
    /// What becomes of those that nothing has dropped.
    pub arrived: Vec<Outcome<'a>>,
    /// What was left open, by the numbers of [`Assumption`]s.
    pub questions: Vec<Open<'a>>,
    /// Everything that they were compared with, in the kernel's order, if that was recorded.
    pub steps: Vec<Step<'a>>,
}

/// What comes of base chains in one of the orders in which they may run: what they decide, and what they let through.
type Way<'a> = (Vec<Outcome<'a>>, Vec<State<'a>>);

/// A visit to a chain, and what comes of it.
#[derive(Default)]
struct Visit<'a> {
    /// How many jumps and gotos lead there from the base chain.
    depth: usize,
    /// How many steps were recorded before the rule that is asked now.
    steps_before: usize,
    /// Goes on to the next rule.
    next: Vec<State<'a>>,
    /// Returns to the chain that jumped here.
    returned: Vec<State<'a>>,
    /// Has left the base chain.
    left_chain: Vec<State<'a>>,
}

pub(super) struct Walker<'a, 'g> {
    found: &'a Found,
    family: Family,
    watched: Option<Watched<'g>>,
    decisions: Vec<Outcome<'a>>,
    questions: Vec<Open<'a>>,
    /// What the connections were compared with, if somebody wants to know.
    steps: Option<Vec<Step<'a>>>,
    /// The hook of the base chain.
    hook: Hook,
    /// Which packets are on their way.
    packet: Packet,
    /// How many rules were asked so far.
    asked: usize,
}

impl<'a, 'g> Walker<'a, 'g> {
    /// A walker that watches whether connections get to a chain, or else one that records each step.
    pub(super) fn new(found: &'a Found, family: Family, watched: Option<Watched<'g>>) -> Self {
        // Room for steps of two packets, so that they aren't copied as there are more of them. Memory that isn't touched
        // takes no time.
        let steps = || Vec::with_capacity(2 * found.tables.iter().flat_map(Table::rules).count());
        Self {
            found,
            family,
            watched,
            decisions: Vec::new(),
            questions: vec![Open::WhichOfMany],
            steps: watched.is_none().then(steps),
            hook: Hook::Prerouting,
            packet: Packet::First,
            asked: 0,
        }
    }

    pub(super) fn finish(self, arrived: Vec<Outcome<'a>>) -> Walk<'a> {
        Walk {
            decisions: self.decisions,
            arrived,
            questions: self.questions,
            steps: self.steps.unwrap_or_default(),
        }
    }

    /// Takes connections through the base chains of a hook.
    pub(super) fn hook(&mut self, hook: Hook, mut states: Vec<State<'a>>) -> Vec<State<'a>> {
        self.hook = hook;
        let Some(first) = states.first() else {
            return states;
        };
        self.packet = first.packet;
        for mut place in places(self.found.chains_at(self.family, hook)) {
            // Where the order isn't known, chains that are for other packets don't count.
            if !is_one_table(&place) {
                let is_nat = place.iter().any(|slot| slot.base.kind == Kind::Nat);
                let packets: Vec<Connections> = states.iter().map(|state| state.anywhere(is_nat)).collect();
                place.retain(|slot| packets.iter().any(|packets| may_decide(slot, packets)));
            }
            for orders in orders(&place) {
                states = self.in_any_order(&orders, states);
            }
        }
        for state in &mut states {
            state.is_seen |= hook != Hook::Ingress;
            state.translate_again(hook);
        }
        states
    }

    /// Takes connections through base chains in each order in which they may run.
    fn in_any_order(&mut self, orders: &Orders<'a>, states: Vec<State<'a>>) -> Vec<State<'a>> {
        let [first, others @ ..] = orders.known.as_slice() else {
            return states;
        };
        if others.is_empty() {
            return self.in_order(first, states);
        }
        let before = self.decisions.split_off(0);
        let mut ways = Vec::new();
        let arrived = self.in_order(first, states.clone());
        ways.push((self.decisions.split_off(0), arrived));
        // Of the steps, those in one order are enough.
        let steps = self.steps.take();
        for order in others {
            let arrived = self.in_order(order, states.clone());
            ways.push((self.decisions.split_off(0), arrived));
        }
        self.steps = steps;
        self.decisions = before;
        self.together(orders, ways)
    }

    /// What several orders come to. What comes of each of them doesn't depend on the order.
    fn together(&mut self, orders: &Orders<'a>, ways: Vec<Way<'a>>) -> Vec<State<'a>> {
        let is_in_each = |is_in: &dyn Fn(&Way<'a>) -> bool| !orders.are_more && ways.iter().all(is_in);
        let question = self.ask(match (orders.are_more, orders.known.as_slice()) {
            (false, [first, second, ..]) => {
                let mut pairs = first.iter().zip(second);
                let differing = pairs.find(|(one, two)| one != two);
                differing.map_or(Open::Orders, |(one, two)| Open::Order(*one, *two))
            }
            _ => Open::Orders,
        });
        let mut arrived = Vec::new();
        for (answer, (decisions, states)) in ways.iter().enumerate() {
            let assumption = Assumption {
                question,
                answer,
                answers: ways.len(),
            };
            for decision in decisions {
                let is_certain = is_in_each(&|(decisions, _)| decisions.contains(decision));
                if is_certain && answer > 0 {
                    continue;
                }
                let mut decision = decision.clone();
                if !is_certain {
                    decision.assumptions.push(assumption);
                }
                self.decisions.push(decision);
            }
            for state in states {
                let is_certain = is_in_each(&|(_, states)| states.iter().any(|other| other.is_like(state)));
                let mut state = state.clone();
                if !is_certain {
                    state.assumptions.push(assumption);
                }
                arrived.push(state);
            }
        }
        if orders.are_more {
            let all = arrived.iter().map(|state| state.outcome(Fate::NotUnderstood, None));
            self.decisions.extend(all);
        }
        merged(arrived)
    }

    fn in_order(&mut self, order: &[Slot<'a>], mut states: Vec<State<'a>>) -> Vec<State<'a>> {
        for slot in order {
            states = self.base_chain(*slot, states);
        }
        states
    }

    /// The number of a question that is left open.
    pub(super) fn ask(&mut self, open: Open<'a>) -> Question {
        self.questions.push(open);
        Question(self.questions.len() - 1)
    }

    pub(super) fn decide(&mut self, state: &State<'a>, at: Place<'a>, fate: Fate) {
        self.decisions.push(state.outcome(fate, Some(at)));
    }

    fn record(&mut self, depth: usize, at: Place<'a>, matched: Matched<'a>) {
        let (hook, packet) = (self.hook, self.packet);
        if let Some(steps) = &mut self.steps {
            steps.push(Step {
                packet,
                hook,
                depth,
                at,
                matched,
            });
        }
    }

    /// The same for a rule. Where it isn't known how the connection gets to a chain, a rule is asked several times in
    /// one visit to that chain: then it is one step, and if the answers differ, it isn't known.
    fn record_or_join(&mut self, visit: &Visit<'a>, at: Place<'a>, matched: Matched<'a>) {
        let depth = visit.depth;
        let steps = self
            .steps
            .as_mut()
            .and_then(|steps| steps.get_mut(visit.steps_before..));
        let mut same = steps.into_iter().flatten().rev();
        let Some(step) = same.find(|step| step.depth == depth && step.at == at) else {
            return self.record(depth, at, matched);
        };
        match (&step.matched, matched) {
            (Matched::Perhaps(..), _) | (Matched::Yes(_), Matched::Yes(_)) | (Matched::No(_), Matched::No(_)) => {}
            (_, Matched::Perhaps(reason)) => step.matched = Matched::Perhaps(reason),
            (Matched::Yes(_), Matched::No(reason)) => {
                step.matched = Matched::Perhaps(reason.clone());
                self.ask(Open::Match(at, reason, self.packet, self.hook));
            }
            (Matched::No(reason), Matched::Yes(_)) => {
                let reason = reason.clone();
                step.matched = Matched::Perhaps(reason.clone());
                self.ask(Open::Match(at, reason, self.packet, self.hook));
            }
        }
    }

    fn base_chain(&mut self, slot: Slot<'a>, states: Vec<State<'a>>) -> Vec<State<'a>> {
        let is_nat = slot.base.kind == Kind::Nat;
        let (mut next, entering): (Vec<_>, Vec<_>) = states.into_iter().partition(|state| is_nat && state.is_settled);
        let policy = Place::Policy(slot);
        let entering = self.of_its_devices(slot, entering, &mut next);
        let entering = entering
            .into_iter()
            .flat_map(|state| self.as_seen(slot, state))
            .collect();
        let out = self.chain(slot.table, slot.chain, entering, 0);
        match slot.base.policy {
            Policy::Accept => next.extend(out.returned),
            Policy::Drop => {
                for state in out.returned {
                    self.record(0, policy, Matched::Yes(&Action::Drop));
                    self.decide(&state, policy, Fate::Dropped);
                }
            }
        }
        next.extend(out.left_chain);
        next.iter_mut().for_each(|state| state.look(true));
        merged(next)
    }

    /// Those whose packets a base chain sees. All others go on.
    fn of_its_devices(&mut self, slot: Slot<'a>, states: Vec<State<'a>>, next: &mut Vec<State<'a>>) -> Vec<State<'a>> {
        let Some(devices) = &slot.chain.devices else {
            return states;
        };
        let field = match self.hook {
            Hook::Egress => Field::OutInterface,
            _ => Field::InInterface,
        };
        let mut seen = Vec::new();
        for state in states {
            let (of_these, of_others) = state.connections.split(field, devices);
            let with = |connections| State {
                connections,
                ..state.clone()
            };
            if of_these.is_some() && of_others.is_some() && self.steps.is_some() {
                let policy = Place::Policy(slot);
                self.ask(Open::Match(policy, Reason::Device(self.hook), self.packet, self.hook));
                self.record(0, policy, Matched::Perhaps(Reason::Device(self.hook)));
            }
            seen.extend(of_these.map(with));
            next.extend(of_others.map(with));
        }
        seen
    }

    /// A packet as a base chain sees it: before connection tracking does, or after that; before it is translated back,
    /// or after that. Where priorities are equal, either may be.
    fn as_seen(&mut self, slot: Slot<'a>, state: State<'a>) -> Vec<State<'a>> {
        let (hook, priority) = (self.hook, slot.order().0);
        let side = state.translation(hook, priority);
        let translated = self.on_side(
            side,
            Open::Side(slot, "translates the packet"),
            state,
            |state, is_after| {
                if is_after {
                    state.translate_again(hook);
                }
            },
        );
        let mut seen = Vec::new();
        for mut state in translated.into_iter().rev() {
            let side = state.tracking(hook, priority);
            state.is_seen |= side == Side::After;
            seen.extend(self.on_side(side, Open::Side(slot, "tracks the connection"), state, State::look));
        }
        seen
    }

    /// A packet on one side of something that the kernel does, or, where it isn't known on which, on either. `pass` is
    /// told whether it is after that.
    fn on_side(
        &mut self,
        side: Side,
        open: Open<'a>,
        mut state: State<'a>,
        pass: impl Fn(&mut State<'a>, bool),
    ) -> Vec<State<'a>> {
        if side != Side::NotKnown {
            pass(&mut state, side == Side::After);
            return vec![state];
        }
        let question = self.ask(open);
        let mut other = state.clone();
        pass(&mut state, false);
        pass(&mut other, true);
        state.assumptions.push(Assumption::yes(question));
        other.assumptions.push(Assumption::no(question));
        vec![state, other]
    }

    fn chain(&mut self, table: &'a Table, chain: &'a Chain, entering: Vec<State<'a>>, depth: usize) -> Visit<'a> {
        let mut visit = Visit {
            depth,
            ..Visit::default()
        };
        let mut now = entering;
        let is_watched = self.watched.is_some_and(|watched| watched.is(table, chain));
        if is_watched {
            for state in &mut now {
                state.after_watched = true;
                state.left = None;
            }
        }
        let mut are_merged = now.len() < 2;
        let asked = match self.watched {
            Some(_) => deciding(chain),
            None => chain.rules.len(),
        };
        for line in Line::all(table, chain).take(asked) {
            if now.is_empty() {
                break;
            }
            // It matters only to who wants to know each step.
            if !line.rule.does_something() && self.steps.is_none() {
                continue;
            }
            self.asked += now.len();
            // Most rules are for other connections, which is found out without moving these.
            let conditions = &line.rule.conditions;
            let are_missed = |state: &State<'a>| conditions.iter().any(|condition| state.connections.miss(condition));
            if are_merged && self.steps.is_none() && now.iter().all(are_missed) {
                continue;
            }
            visit.steps_before = self.steps.as_ref().map_or(0, Vec::len);
            for state in now.drain(..) {
                self.rule(line, state, &mut visit);
            }
            std::mem::swap(&mut now, &mut visit.next);
            now = merged(now);
            are_merged = true;
            // As the base chain will in the end, but that 10,000 rules may each let others through. Those that are not
            // settled in the watched chain are told by the rule that let them.
            if visit.left_chain.len() > MOST_LEFT && !visit.left_chain.iter().any(State::is_told) {
                visit.left_chain = merged(visit.left_chain);
            }
        }
        visit.returned.extend(now);
        if is_watched {
            // Those that a rule of the watched chain lets bypass the proxy.
            let ended = visit
                .returned
                .iter()
                .chain(&visit.left_chain)
                .filter(|state| !state.is_settled);
            let bypassing = ended.filter_map(|state| Some(state.outcome(Fate::Accepted, Some(state.left?))));
            self.decisions.extend(bypassing);
        }
        visit
    }

    /// Asks a rule about connections.
    fn rule(&mut self, line: Line<'a>, state: State<'a>, visit: &mut Visit<'a>) {
        let at = Place::Rule(line);
        let mut split = match ask(line.table, line.rule, &state) {
            Ok(split) => split,
            Err(reason) => {
                self.record_or_join(visit, at, Matched::No(reason));
                return visit.next.push(state);
            }
        };
        let is_told = split.is_told;
        let matched = match split.reason.take() {
            Some(reason) => Matched::Perhaps(reason),
            None if self.steps.is_some() => by_map(line, &state.connections),
            None => Matched::Yes(&line.rule.action),
        };
        let question = match &matched {
            Matched::Perhaps(reason) if !is_told || self.steps.is_some() => {
                Some(self.ask(Open::Match(at, reason.clone(), self.packet, self.hook)))
            }
            _ => None,
        };
        self.record_or_join(visit, at, matched);
        let (mut matching, mut rest) = split.parts(state);
        if let Some(question) = question.filter(|_| !is_told) {
            matching.assumptions.push(Assumption::yes(question));
            let others = rest.iter_mut();
            others.for_each(|others| others.assumptions.push(Assumption::no(question)));
        }
        visit.next.extend(rest);
        for effect in &line.rule.effects {
            let goes_on = match effect {
                Effect::Untrack => self.untrack(at, &mut matching),
                Effect::Mark { field, to, .. } if !matching.set_mark(*field, *to) => return visit.next.push(matching),
                Effect::Mark { .. } | Effect::Other(_) => true,
            };
            if !goes_on {
                return;
            }
        }
        self.act(line, matching, &line.rule.action, visit);
    }

    /// Has connection tracking leave a packet alone, unless it has an entry for it already (`nft_notrack_eval` in
    /// net/netfilter/nft_ct.c, `xt_ct_target` in xt_CT.c). Returns whether the packet goes on.
    fn untrack(&mut self, at: Place<'a>, state: &mut State<'a>) -> bool {
        if !state.is_invalid() {
            return true;
        }
        if !state.flow.pending.is_empty() {
            // It isn't translated, so that whoever waits for it gets it from a stranger, or somebody else gets it.
            self.decide(state, at, Fate::Dropped);
            return false;
        }
        if state.packet == Packet::First {
            self.decide(state, at, Fate::Untracked);
            state.taken = Some((at, &Action::Untrack));
        }
        state.is_settled = true;
        state.is_seen = true;
        state.tracked = CtState::Untracked;
        state.look(true);
        true
    }

    /// What a rule does with connections that match it.
    fn act(&mut self, line: Line<'a>, mut state: State<'a>, action: &'a Action, visit: &mut Visit<'a>) {
        let at = Place::Rule(line);
        match action {
            Action::Continue(_) => visit.next.push(state),
            Action::Accept => {
                state.left = Some(at);
                visit.left_chain.push(state);
            }
            Action::Drop => self.decide(&state, at, Fate::Dropped),
            Action::Return => {
                state.left = Some(at);
                visit.returned.push(state);
            }
            Action::Redirect(_) | Action::Nat(_) if state.packet != Packet::First => match state.is_settled {
                true => visit.left_chain.push(state),
                // It is of a connection that isn't tracked, and is taken from it.
                false => self.decide(&state, at, Fate::Dropped),
            },
            Action::Redirect(_) | Action::Nat(_) => {
                self.decide(&state, at, Fate::Translated);
                state.is_settled = true;
                translate(&mut state, self.hook, at, action);
                match self.watched {
                    None => visit.left_chain.push(state),
                    // What later rules say of source ports is about clients.
                    Some(_) if state.after_watched => visit.left_chain.push(state.of_client()),
                    // Where another rule has sent them doesn't matter to who watches.
                    Some(_) => {}
                }
            }
            Action::Untrack => {
                if self.untrack(at, &mut state) {
                    visit.next.push(state);
                }
            }
            Action::Unknown(_) => {
                self.decide(&state, at, Fate::NotUnderstood);
                let question = self.ask(Open::Action(at));
                state.assumptions.push(Assumption::no(question));
                visit.next.push(state);
            }
            Action::Jump(name) | Action::Goto(name) => {
                let may_follow = visit.depth < DEEPEST && self.asked < MOST_ASKED;
                let Some(target) = line.table.chain(name).filter(|_| may_follow) else {
                    self.decide(&state, at, Fate::NotUnderstood);
                    return visit.next.push(state);
                };
                let through = self.chain(line.table, target, vec![state], visit.depth + 1);
                visit.left_chain.extend(through.left_chain);
                if matches!(action, Action::Jump(_)) {
                    visit.next.extend(through.returned);
                } else {
                    let left = Some(at);
                    let returned = through.returned.into_iter();
                    visit.returned.extend(returned.map(|state| State { left, ..state }));
                }
            }
            Action::Map(field, name) | Action::RedirectByMap(field, name) => {
                let Some(verdicts) = line.table.set(name).and_then(|map| map.verdicts_of(*field)) else {
                    self.decide(&state, at, Fate::NotUnderstood);
                    return visit.next.push(state);
                };
                let mut rest = Some(state.connections.clone());
                for (numbers, action) in &verdicts {
                    let (Some(connections), _) = state.connections.split(*field, numbers) else {
                        continue;
                    };
                    let taken = State {
                        connections,
                        ..state.clone()
                    };
                    self.act(line, taken, action, visit);
                    rest = rest.and_then(|rest| rest.split(*field, numbers).1);
                }
                visit
                    .next
                    .extend(rest.map(|connections| State { connections, ..state }));
            }
        }
    }
}

/// How many rules a chain has up to the last that decides something. In a base chain that lets packets through, what
/// lets some through before its end doesn't.
fn deciding(chain: &Chain) -> usize {
    let lets_through = chain.base.is_some_and(|base| base.policy == Policy::Accept);
    let decides = |rule: &Rule| match rule.action {
        Action::Accept | Action::Return => !lets_through || rule.has_lasting_effect(),
        _ => rule.does_something(),
    };
    chain.rules.iter().rposition(decides).map_or(0, |last| last + 1)
}

/// Whether a base chain may do anything with these packets.
fn may_decide(slot: &Slot<'_>, packets: &Connections) -> bool {
    let may_match = |rule: &Rule| {
        let mut conditions = rule.conditions.iter();
        conditions.all(|condition| packets.meeting(slot.table, condition) != Meeting::None)
    };
    let decides = |rule: &&Rule| rule.does_something();
    slot.base.policy == Policy::Drop || slot.chain.rules.iter().filter(decides).any(may_match)
}

/// Whether connections that meet all conditions of a rule match it: if a verdict map decides, they do if it says
/// something about them.
fn by_map<'a>(line: Line<'a>, connections: &Connections) -> Matched<'a> {
    let action = &line.rule.action;
    let (Action::Map(field, name) | Action::RedirectByMap(field, name)) = action else {
        return Matched::Yes(action);
    };
    let Some(verdicts) = line.table.set(name).and_then(|map| map.verdicts_of(*field)) else {
        return Matched::Yes(action);
    };
    let reason = Reason::Map(*field, name, connections.clone());
    let said = verdicts
        .into_iter()
        .find_map(|(numbers, action)| match connections.split(*field, &numbers) {
            (None, _) => None,
            (Some(_), others) => Some((action, others.is_none())),
        });
    match said {
        None => Matched::No(reason),
        Some((action, true)) => Matched::Yes(action),
        Some((_, false)) => Matched::Perhaps(reason),
    }
}

/// Has a nat rule's action change connections.
///
/// A redirected connection goes to this host: on its way out to the loopback address, on its way in to an address of
/// the device (`nf_nat_redirect_ipv4` and `nf_nat_redirect_ipv6` in net/netfilter/nf_nat_redirect.c).
fn translate<'a>(state: &mut State<'a>, hook: Hook, at: Place<'a>, action: &'a Action) {
    let is_source = matches!(hook, Hook::Input | Hook::Postrouting);
    let (port, field): (Field, fn(Family) -> Field) = match is_source {
        true => (Field::SourcePort, Field::Source),
        false => (Field::DestinationPort, Field::Destination),
    };
    let (to, ports) = match action {
        Action::Redirect(ports) => (None, *ports),
        Action::Nat(nat) => (nat.address, nat.ports),
        _ => (None, None),
    };
    let is_redirection = matches!(action, Action::Redirect(_));
    let mut fields = Vec::from(Family::ALL.map(|family| {
        let known = match is_redirection && hook == Hook::Output {
            true => Some(family.localhost()),
            false => to,
        };
        let field = field(family);
        (field, known.map_or(field.any(), |known| Intervals::one(address(known))))
    }));
    match ports {
        Some((first, last)) => fields.push((port, Intervals::new([(first.into(), last.into())]))),
        // Of a destination's port, nothing is said.
        None if is_redirection || (to.is_some() && !is_source) => {}
        None => fields.push((port, port.any())),
    }
    state.translate(is_source, fields);
    if !is_source {
        state.taken = Some((at, action));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::flags::ct_state;
    use crate::rules::{Bits, Condition, Direction, Name, Nat, Set, TCP, Values, interface};
    use crate::rules::{
        examples::base, examples::chain, examples::not, examples::ports, examples::rule, examples::table,
        examples::to_port,
    };
    use crate::walk::route::{Surroundings, there_and_back};

    const REDIRECT: &str = "PROXY_INIT_REDIRECT";

    fn name(text: &str) -> Name {
        Name::from(text)
    }

    fn jump(to: &str) -> Action {
        Action::Jump(name(to))
    }

    fn goto(to: &str) -> Action {
        Action::Goto(name(to))
    }

    fn redirect(port: u16) -> Action {
        Action::Redirect(Some((port, port)))
    }

    fn unknown() -> Action {
        Action::Unknown("queue to 1".to_owned())
    }

    fn fixed(holds: bool) -> Condition {
        ct_state(|state| (state == CtState::New) == holds)
    }

    fn strange() -> Condition {
        Condition::Unknown("-m recent".to_owned())
    }

    fn any(action: Action) -> Rule {
        rule([], action)
    }

    fn prerouting(rules: Vec<Rule>) -> Chain {
        base("PREROUTING", Kind::Nat, Hook::Prerouting, -100, rules)
    }

    /// proxy-init's own chain, which redirects everything.
    fn redirecting() -> Chain {
        chain(REDIRECT, vec![any(redirect(4143))])
    }

    /// The nat table with these rules before the jump to proxy-init's chain, and other chains.
    fn nat(before: Vec<Rule>, others: Vec<Chain>) -> Table {
        let mut rules = before;
        rules.push(any(jump(REDIRECT)));
        let mut chains = vec![prerouting(rules), redirecting()];
        chains.extend(others);
        table("ip nat", chains)
    }

    /// A filter table whose chain at the hook runs before nat.
    fn mangle(name: &str, rules: Vec<Rule>) -> Table {
        table(name, vec![base("early", Kind::Filter, Hook::Prerouting, -150, rules)])
    }

    /// The decisions about connections as text, one a line: `TABLE CHAIN RULE: FATE of CONNECTIONS`, with `perhaps`
    /// where it isn't certain, and `after` where they have been in proxy-init's chain.
    fn of(tables: Vec<Table>, direction: Direction, connections: Connections) -> Vec<String> {
        let found = Found {
            tables,
            not_known: vec![],
        };
        let nat = table("ip nat", vec![]);
        let watched = Watched {
            table: &nat,
            chain: match direction {
                Direction::Inbound => REDIRECT,
                Direction::Outbound => "PROXY_INIT_OUTPUT",
            },
        };
        let walk = there_and_back(
            &found,
            Family::V4,
            direction,
            connections,
            &Surroundings::default(),
            Some(watched),
        );
        let outcome = |outcome: &Outcome<'_>| {
            let at = outcome.at.unwrap();
            let place = at.line().map_or("policy".to_owned(), |line| line.number.to_string());
            format!(
                "{} {} {place}: {:?}{}{} of {}",
                at.table(),
                at.chain().name,
                outcome.fate,
                if outcome.is_certain() { "" } else { " perhaps" },
                if outcome.after_watched { " after" } else { "" },
                outcome.connections
            )
        };
        walk.decisions.iter().chain(&walk.arrived).map(outcome).collect()
    }

    fn inbound(tables: Vec<Table>) -> Vec<String> {
        of(
            tables,
            Direction::Inbound,
            Connections::all(Family::V4, Direction::Inbound),
        )
    }

    /// What is said of a nat table in which everything gets to proxy-init's chain.
    const ALL_WELL: [&str; 1] = ["ip nat PROXY_INIT_REDIRECT 1: Translated after of all TCP connections"];

    /// What is said if all connections but those to port 80 get there, and this about those.
    fn but_for_port_80(about: &str) -> Vec<String> {
        let redirected = "ip nat PROXY_INIT_REDIRECT 1: Translated after of to any port but 80".to_owned();
        // A connection that passes by is known to only at the end.
        match about.contains("Accepted") {
            true => vec![redirected, about.to_owned()],
            false => vec![about.to_owned(), redirected],
        }
    }

    #[test]
    fn nothing_that_decides_leaves_the_way_free() {
        assert_eq!(inbound(vec![nat(vec![], vec![])]), ALL_WELL);
        let to = |port: u16| Condition::is(Field::DestinationPort, u128::from(port));
        let count = Action::Continue(None);
        for (what, before, others) in [
            ("a counter", vec![any(count.clone())], vec![]),
            ("a log", vec![any(Action::Continue(Some("log".to_owned())))], vec![]),
            ("an empty chain", vec![any(jump("empty"))], vec![chain("empty", vec![])]),
            (
                "a return in a chain",
                vec![any(jump("back"))],
                vec![chain("back", vec![any(Action::Return)])],
            ),
            (
                "nested jumps",
                vec![any(jump("one"))],
                vec![
                    chain("one", vec![any(jump("two")), any(Action::Return)]),
                    chain("two", vec![any(jump("three"))]),
                    chain("three", vec![any(Action::Return), any(Action::Drop)]),
                ],
            ),
            (
                "a goto within a jump",
                vec![any(jump("one"))],
                vec![
                    chain("one", vec![any(goto("two")), any(Action::Drop)]),
                    chain("two", vec![any(count.clone())]),
                ],
            ),
            (
                "UDP only",
                vec![rule([Condition::is(Field::Protocol, 17)], Action::Drop)],
                vec![],
            ),
            (
                "no TCP",
                vec![rule([not(Condition::is(Field::Protocol, TCP))], Action::Drop)],
                vec![],
            ),
            (
                "IPv6 only",
                vec![rule([Condition::is(Field::Family, 10)], Action::Drop)],
                vec![],
            ),
            (
                "an IPv6 address",
                vec![rule([not(Condition::is(Field::Source(Family::V6), 1))], Action::Drop)],
                vec![],
            ),
            (
                "a user, which inbound packets have none of",
                vec![rule([Condition::is(Field::Uid, 7)], Action::Drop)],
                vec![],
            ),
            (
                "not a user",
                vec![rule([not(Condition::is(Field::Uid, 7))], Action::Drop)],
                vec![],
            ),
            (
                "a way out by a device",
                vec![rule(
                    [Condition::is(Field::OutInterface, interface(b"lo"))],
                    Action::Drop,
                )],
                vec![],
            ),
            ("no new connection", vec![rule([fixed(false)], Action::Drop)], vec![]),
            (
                "no new connection and something unknown",
                vec![rule([strange(), fixed(false)], Action::Drop)],
                vec![],
            ),
            ("two ports at once", vec![rule([to(80), to(81)], Action::Drop)], vec![]),
            (
                "an unknown condition on a counter",
                vec![rule([strange()], count)],
                vec![],
            ),
        ] {
            assert_eq!(inbound(vec![nat(before, others)]), ALL_WELL, "{what}");
        }
    }

    #[test]
    fn a_rule_before_the_jump_takes_its_connections() {
        let first = "ip nat PREROUTING 1";
        for (action, others, want) in [
            (Action::Accept, vec![], "Accepted"),
            (Action::Return, vec![], "Accepted"),
            (goto("empty"), vec![chain("empty", vec![])], "Accepted"),
            (Action::Drop, vec![], "Dropped"),
            (redirect(1), vec![], "Translated"),
            (Action::Nat(Nat::somewhere("dnat to 10.0.0.1")), vec![], "Translated"),
        ] {
            let got = inbound(vec![nat(vec![rule([to_port(80)], action)], others)]);
            assert_eq!(got, but_for_port_80(&format!("{first}: {want} of to port 80")));
        }
    }

    #[test]
    fn a_rule_in_a_chain_before_the_jump_takes_its_connections() {
        for (way, action, want) in [
            (jump("sub"), Action::Accept, "ip nat sub 1: Accepted of to port 80"),
            (jump("sub"), Action::Drop, "ip nat sub 1: Dropped of to port 80"),
            (jump("sub"), goto("end"), ""),
        ] {
            let others = vec![
                chain("sub", vec![rule([to_port(80)], action), any(Action::Return)]),
                chain("end", vec![any(Action::Return)]),
            ];
            let got = inbound(vec![nat(vec![any(way)], others)]);
            match want {
                // The goto ends in the chain that jumped before.
                "" => assert!(got.iter().any(|line| line.contains("after of")), "{got:?}"),
                want => assert_eq!(got, but_for_port_80(want)),
            }
        }
        // A goto from the base chain doesn't come back, wherever its target ends.
        let others = vec![chain("sub", vec![rule([to_port(80)], Action::Drop)])];
        assert_eq!(
            inbound(vec![nat(vec![any(goto("sub"))], others)]),
            [
                "ip nat sub 1: Dropped of to port 80",
                "ip nat PREROUTING 1: Accepted of to any port but 80",
            ]
        );
    }

    #[test]
    fn a_rule_after_the_jump_is_too_late() {
        let mut table = nat(vec![], vec![]);
        table.chains[1].rules = vec![rule([to_port(80)], Action::Return), any(redirect(4143))];
        table.chains[0].rules.push(rule([to_port(80)], redirect(1)));
        assert_eq!(
            inbound(vec![table]),
            [
                "ip nat PROXY_INIT_REDIRECT 2: Translated after of to any port but 80",
                "ip nat PROXY_INIT_REDIRECT 1: Accepted after of to port 80",
                "ip nat PREROUTING 2: Translated after of to port 80",
            ]
        );
    }

    #[test]
    fn what_one_rule_has_taken_no_later_one_takes() {
        for first in [Action::Return, Action::Accept] {
            let before = vec![
                rule([to_port(80)], first),
                rule([to_port(80)], redirect(1)),
                rule([to_port(80)], Action::Drop),
            ];
            assert_eq!(
                inbound(vec![nat(before, vec![])]),
                but_for_port_80("ip nat PREROUTING 1: Accepted of to port 80")
            );
        }
    }

    #[test]
    fn conditions_pick_their_connections() {
        let ten = || Condition::is(Field::Source(Family::V4), (0x0a00_0000, 0x0aff_ffff));
        let unlisted = Condition::is(Field::SourcePort, Values::Set(name("missing")));
        let dropped = |conditions: Vec<Condition>| {
            let drop = Rule {
                conditions,
                ..any(Action::Drop)
            };
            let got = inbound(vec![nat(vec![drop], vec![])]);
            let (of, rest) = (&got[0], &got[1..]);
            let of = of.strip_prefix("ip nat PREROUTING 1: Dropped").unwrap().to_owned();
            let prefix = "ip nat PROXY_INIT_REDIRECT 1: Translated ";
            let rest: Vec<_> = rest
                .iter()
                .map(|line| line.strip_prefix(prefix).unwrap().replace("after of ", ""))
                .collect();
            (of, rest)
        };
        for (conditions, of, rest) in [
            (vec![not(to_port(80))], " of to any port but 80", "to port 80"),
            (vec![to_port(80), fixed(true)], " of to port 80", "to any port but 80"),
            (
                vec![Condition::is(Field::Protocol, TCP), to_port(80)],
                " of to port 80",
                "to any port but 80",
            ),
            // Two tell them apart: the others can't be said in one set, so they are said to be all.
            (
                vec![to_port(80), ten()],
                " of from 10.0.0.0/8 to port 80",
                "all TCP connections",
            ),
            (
                vec![strange()],
                " perhaps of all TCP connections",
                "perhaps all TCP connections",
            ),
            (
                vec![strange(), to_port(80), ten()],
                " perhaps of from 10.0.0.0/8 to port 80",
                "perhaps all TCP connections",
            ),
            (
                vec![unlisted, to_port(80), ten()],
                " perhaps of from 10.0.0.0/8 to port 80",
                "perhaps all TCP connections",
            ),
            (
                vec![strange(), to_port(80)],
                " perhaps of to port 80",
                "perhaps all TCP connections",
            ),
            (
                vec![to_port(80), strange()],
                " perhaps of to port 80",
                "perhaps all TCP connections",
            ),
        ] {
            let case = format!("{conditions:?}");
            assert_eq!(dropped(conditions), (of.to_owned(), vec![rest.to_owned()]), "{case}");
        }
    }

    #[test]
    fn sets_are_looked_up_in_their_table() {
        let in_set = |set: &str| Condition::is(Field::DestinationPort, Values::Set(name(set)));
        let with_sets = |condition| {
            let mut table = nat(vec![rule([condition], Action::Drop)], vec![]);
            table.sets = vec![
                ports("web", &[(80, 80)]),
                ports("empty", &[]),
                Set {
                    elements: None,
                    ..ports("several-fields", &[])
                },
            ];
            inbound(vec![table])
        };
        assert_eq!(
            with_sets(in_set("web")),
            but_for_port_80("ip nat PREROUTING 1: Dropped of to port 80")
        );
        assert_eq!(with_sets(in_set("empty")), ALL_WELL);
        assert_eq!(
            with_sets(not(in_set("empty"))),
            ["ip nat PREROUTING 1: Dropped of all TCP connections"]
        );
        for unknown in ["several-fields", "missing"] {
            assert_eq!(
                with_sets(in_set(unknown)),
                [
                    "ip nat PREROUTING 1: Dropped perhaps of all TCP connections",
                    "ip nat PROXY_INIT_REDIRECT 1: Translated perhaps after of all TCP connections",
                ],
                "{unknown}"
            );
        }
    }

    #[test]
    fn a_verdict_map_takes_what_it_lists() {
        let map = |field, verdicts: &[(u128, Action)]| {
            let mut table = nat(
                vec![any(Action::Map(field, name("verdicts")))],
                vec![chain("sub", vec![])],
            );
            table.sets = vec![Set {
                verdicts: verdicts
                    .iter()
                    .map(|(number, action)| (Intervals::one(*number), action.clone()))
                    .collect(),
                ..ports("verdicts", &[])
            }];
            inbound(vec![table])
        };
        let port = Field::DestinationPort;
        let drop_80 = but_for_port_80("ip nat PREROUTING 1: Dropped of to port 80");
        assert_eq!(map(port, &[(80, Action::Drop)]), drop_80);
        assert_eq!(
            map(port, &[(80, Action::Drop), (70_000, Action::Accept)]),
            drop_80,
            "no packet has such a port"
        );
        assert_eq!(
            map(port, &[(80, goto("sub")), (443, Action::Accept)]),
            [
                "ip nat PROXY_INIT_REDIRECT 1: Translated after of to any port but 80,443",
                "ip nat PREROUTING 1: Accepted of to port 80",
                "ip nat PREROUTING 1: Accepted of to port 443",
            ]
        );
        assert_eq!(map(port, &[]), ALL_WELL);
        assert_eq!(map(Field::Uid, &[(7, Action::Drop)]), ALL_WELL, "no user sends them");
        assert_eq!(
            map(Field::Protocol, &[(TCP, Action::Drop)]),
            ["ip nat PREROUTING 1: Dropped of all TCP connections"]
        );
        assert_eq!(
            inbound(vec![nat(vec![any(Action::Map(port, name("missing")))], vec![])]),
            [
                "ip nat PREROUTING 1: NotUnderstood perhaps of all TCP connections",
                ALL_WELL[0]
            ]
        );
    }

    #[test]
    fn what_is_not_understood_is_not_certain_nor_what_comes_after_it() {
        let after = vec![rule([to_port(80)], unknown()), rule([to_port(80)], Action::Drop)];
        assert_eq!(
            inbound(vec![nat(after, vec![])]),
            [
                "ip nat PREROUTING 1: NotUnderstood perhaps of to port 80",
                "ip nat PREROUTING 2: Dropped perhaps of to port 80",
                "ip nat PROXY_INIT_REDIRECT 1: Translated after of to any port but 80",
            ]
        );
        let before = vec![any(jump("missing"))];
        assert_eq!(
            inbound(vec![nat(before, vec![])]),
            [
                "ip nat PREROUTING 1: NotUnderstood perhaps of all TCP connections",
                ALL_WELL[0]
            ]
        );
    }

    #[test]
    fn an_accept_ends_only_its_own_base_chain() {
        let accept = mangle("ip mangle", vec![any(Action::Accept), any(Action::Drop)]);
        assert_eq!(inbound(vec![accept, nat(vec![], vec![])]), ALL_WELL);
    }

    /// However many there are, and although some of them aren't understood.
    #[test]
    fn what_lets_through_at_the_end_of_a_base_chain_decides_nothing() {
        let mut rules: Vec<Rule> = (1..=100).map(|port| rule([to_port(port)], Action::Accept)).collect();
        rules.push(rule([strange()], Action::Return));
        assert_eq!(
            inbound(vec![mangle("ip mangle", rules.clone()), nat(vec![], vec![])]),
            ALL_WELL
        );
        // A mark lasts longer than the chain.
        let marking = Effect::Mark {
            field: Field::Mark,
            to: Some(Bits::constant(Field::Mark, 7)),
            text: "meta mark set 7".to_owned(),
        };
        rules[79].effects.push(marking);
        let marked = Condition::is(Field::Mark, 7);
        let others = vec![rule([not(marked)], Action::Drop)];
        let got = inbound(vec![mangle("ip mangle", rules.split_off(79)), nat(others, vec![])]);
        assert_eq!(
            got,
            [
                "ip nat PREROUTING 1: Dropped of to any port but 80",
                "ip nat PROXY_INIT_REDIRECT 1: Translated after of to port 80",
            ]
        );
    }

    #[test]
    fn a_drop_before_ends_everything_whatever_table_it_is_in() {
        for name in ["ip mangle", "inet mine", "legacy ip mangle"] {
            let dropping = mangle(name, vec![rule([to_port(80)], Action::Drop)]);
            assert_eq!(
                inbound(vec![dropping, nat(vec![], vec![])]),
                but_for_port_80(&format!("{name} early 1: Dropped of to port 80"))
            );
        }
        let other_family = mangle("ip6 mangle", vec![any(Action::Drop)]);
        let dormant = Table {
            dormant: true,
            ..mangle("ip mangle", vec![any(Action::Drop)])
        };
        let output = base("out", Kind::Filter, Hook::Forward, -150, vec![any(Action::Drop)]);
        let other_hook = table("inet mine", vec![output]);
        assert_eq!(
            inbound(vec![other_family, dormant, other_hook, nat(vec![], vec![])]),
            ALL_WELL
        );
    }

    #[test]
    fn ingress_comes_before_prerouting() {
        let at_ingress = base(
            "edge",
            Kind::Filter,
            Hook::Ingress,
            500,
            vec![rule([to_port(80)], Action::Drop)],
        );
        assert_eq!(
            inbound(vec![nat(vec![], vec![]), table("netdev edge", vec![at_ingress])]),
            but_for_port_80("netdev edge edge 1: Dropped of to port 80")
        );
    }

    #[test]
    fn a_chain_of_a_device_sees_the_packets_of_that_one() {
        let edge = base("edge", Kind::Filter, Hook::Ingress, 0, vec![any(Action::Drop)]);
        let of_eth1 = Chain {
            devices: Some(Intervals::one(interface(b"eth1"))),
            ..edge
        };
        let tables = || vec![table("netdev edge", vec![of_eth1.clone()]), nat(vec![], vec![])];
        let by = |device: &[u8]| {
            let all = Connections::all(Family::V4, Direction::Inbound);
            let these = all.with(Field::InInterface, &Intervals::one(interface(device)));
            of(tables(), Direction::Inbound, these)
        };
        let redirected = "ip nat PROXY_INIT_REDIRECT 1: Translated after of in by";
        assert_eq!(by(b"eth1"), ["netdev edge edge 1: Dropped of in by \"eth1\""]);
        assert_eq!(by(b"eth2"), [format!("{redirected} \"eth2\"")]);
        let got = inbound(tables());
        assert_eq!(got[0], "netdev edge edge 1: Dropped of in by \"eth1\"");
        assert!(got.len() == 2 && got[1].starts_with(redirected), "{got:?}");
    }

    /// What a rule accepts that runs before other rules redirect it is no bypass of theirs.
    #[test]
    fn what_another_rule_redirects_after_an_accept_does_not_pass_by() {
        let accepting = mangle("ip mangle", vec![rule([to_port(80)], Action::Accept)]);
        let rules = vec![rule([to_port(80)], redirect(1))];
        let earlier = base("dstnat", Kind::Nat, Hook::Prerouting, -110, rules);
        assert_eq!(
            inbound(vec![accepting, table("ip mine", vec![earlier]), nat(vec![], vec![])]),
            but_for_port_80("ip mine dstnat 1: Translated of to port 80")
        );
    }

    #[test]
    fn a_policy_drops_what_gets_to_the_end() {
        let with_policy_drop = |mut table: Table| {
            table.chains[0].base.as_mut().unwrap().policy = Policy::Drop;
            table
        };
        let accept_80 = || mangle("ip mangle", vec![rule([to_port(80)], Action::Accept)]);
        assert_eq!(
            inbound(vec![with_policy_drop(accept_80()), nat(vec![], vec![])]),
            [
                "ip mangle early policy: Dropped of to any port but 80",
                "ip nat PROXY_INIT_REDIRECT 1: Translated after of to port 80",
            ]
        );
        let mut bypassing = nat(vec![], vec![]);
        bypassing.chains[1].rules.insert(0, rule([to_port(80)], Action::Return));
        assert_eq!(
            inbound(vec![with_policy_drop(bypassing)]),
            [
                "ip nat PROXY_INIT_REDIRECT 2: Translated after of to any port but 80",
                "ip nat PROXY_INIT_REDIRECT 1: Accepted after of to port 80",
                "ip nat PREROUTING policy: Dropped after of to port 80",
            ]
        );
    }

    #[test]
    fn once_mapped_no_nat_chain_is_asked_but_filter_chains_are() {
        let later = |kind| {
            let rules = vec![any(Action::Drop)];
            table("inet later", vec![base("late", kind, Hook::Prerouting, 10, rules)])
        };
        assert_eq!(inbound(vec![nat(vec![], vec![]), later(Kind::Nat)]), ALL_WELL);
        assert_eq!(
            inbound(vec![nat(vec![], vec![]), later(Kind::Filter)]),
            [ALL_WELL[0], "inet later late 1: Dropped after of to port 4143"]
        );
        // An earlier nat chain has mapped them: proxy-init's isn't asked.
        let earlier = base("dstnat", Kind::Nat, Hook::Prerouting, -110, vec![any(redirect(1))]);
        assert_eq!(
            inbound(vec![nat(vec![], vec![]), table("ip mine", vec![earlier])]),
            ["ip mine dstnat 1: Translated of all TCP connections"]
        );
    }

    #[test]
    fn what_is_not_tracked_passes_no_nat_chain() {
        let raw = mangle(
            "ip raw",
            vec![
                rule([to_port(80)], Action::Untrack),
                rule([to_port(80)], Action::Accept),
            ],
        );
        let tracked = inbound(vec![raw.clone(), nat(vec![], vec![])]);
        assert!(tracked.iter().all(|said| said.contains("Translated")), "{tracked:?}");
        let mut raw = raw;
        raw.chains[0].base.as_mut().unwrap().priority = -300;
        assert_eq!(
            inbound(vec![raw, nat(vec![], vec![])]),
            but_for_port_80("ip raw early 1: Untracked of to port 80")
        );
    }

    #[test]
    fn between_tables_of_equal_priority_the_other_may_run_first() {
        let other = || {
            let rules = vec![rule([to_port(80)], redirect(1))];
            table(
                "ip mine",
                vec![base("dstnat", Kind::Nat, Hook::Prerouting, -100, rules)],
            )
        };
        let last = || {
            let rules = vec![any(redirect(2))];
            table("ip last", vec![base("dstnat", Kind::Nat, Hook::Prerouting, -99, rules)])
        };
        // In one order proxy-init's chain redirects all of them, in the other one all but those.
        let want = [
            "ip mine dstnat 1: Translated perhaps of to port 80",
            "ip nat PROXY_INIT_REDIRECT 1: Translated perhaps after of all TCP connections",
            "ip nat PROXY_INIT_REDIRECT 1: Translated perhaps after of to any port but 80",
        ];
        let inbound = |tables| {
            let mut said = super::tests::inbound(tables);
            said.sort();
            said
        };
        // Whichever table was made first.
        assert_eq!(inbound(vec![other(), nat(vec![], vec![]), last()]), want);
        assert_eq!(inbound(vec![last(), nat(vec![], vec![]), other()]), want);
        assert_eq!(inbound(vec![nat(vec![], vec![]), last(), other()]), want);
        // A chain named like the one that holds the jump is another one in another table.
        let namesake = base("PREROUTING", Kind::Filter, Hook::Prerouting, -150, vec![]);
        let namesake = table("ip mangle", vec![namesake]);
        assert_eq!(inbound(vec![namesake, other(), nat(vec![], vec![])]), want);
        // A filter chain's priority isn't tied with a nat chain's.
        let rules = vec![rule([to_port(4143)], Action::Drop)];
        let filter = table(
            "ip mine",
            vec![base("late", Kind::Filter, Hook::Prerouting, -99, rules)],
        );
        assert_eq!(
            inbound(vec![filter, nat(vec![], vec![])]),
            ["ip mine late 1: Dropped after of to port 4143", ALL_WELL[0]]
        );
    }

    #[test]
    fn what_a_tied_chain_leaves_alone_is_as_certain_as_before() {
        let rules = vec![rule([to_port(80)], Action::Return)];
        let tied = table(
            "ip mine",
            vec![base("dstnat", Kind::Nat, Hook::Prerouting, -100, rules)],
        );
        let before = vec![rule([to_port(443)], Action::Drop)];
        assert_eq!(
            inbound(vec![tied.clone(), nat(before.clone(), vec![])])[..1],
            ["ip nat PREROUTING 1: Dropped of to port 443"]
        );
        // What wasn't certain before isn't now.
        let doubt = mangle("ip mangle", vec![any(unknown())]);
        let got = inbound(vec![doubt, tied, nat(before, vec![])]);
        assert_eq!(
            got[..2],
            [
                "ip mangle early 1: NotUnderstood perhaps of all TCP connections",
                "ip nat PREROUTING 1: Dropped perhaps of to port 443",
            ]
        );
    }

    #[test]
    fn in_whichever_order_chains_run_the_same_comes_of_them_where_steps_are_recorded() {
        let early = |name, port: u128| {
            let of_port = Condition::is(Field::SourcePort, port);
            mangle(name, vec![rule([of_port], Action::Accept)])
        };
        let drop = base("INPUT", Kind::Filter, Hook::Input, 0, vec![any(Action::Drop)]);
        let found = Found {
            tables: vec![
                early("ip one", 1000),
                early("ip two", 2000),
                table("ip filter", vec![drop]),
            ],
            not_known: vec![],
        };
        let (family, direction) = (Family::V4, Direction::Inbound);
        let all = Connections::all(family, direction);
        let walk = there_and_back(&found, family, direction, all, &Surroundings::default(), None);
        let dropped: Vec<_> = walk.decisions.iter().map(Outcome::is_certain).collect();
        assert_eq!(dropped, [true; 3], "{:#?}", walk.decisions);
    }

    #[test]
    fn outbound_connections_have_a_user_and_pass_output() {
        let rules = vec![
            rule([Condition::is(Field::Uid, 2102)], Action::Return),
            any(jump("PROXY_INIT_OUTPUT")),
        ];
        let output = table(
            "ip nat",
            vec![
                base("OUTPUT", Kind::Nat, Hook::Output, -100, rules),
                chain("PROXY_INIT_OUTPUT", vec![any(redirect(4140))]),
                prerouting(vec![any(Action::Drop)]),
            ],
        );
        assert_eq!(
            of(
                vec![output],
                Direction::Outbound,
                Connections::all(Family::V4, Direction::Outbound)
            ),
            [
                "ip nat PROXY_INIT_OUTPUT 1: Translated after of of any user but 2102",
                "ip nat OUTPUT 1: Accepted of of user 2102",
            ]
        );
    }

    #[test]
    fn a_single_connection_is_followed_too() {
        let one = Connections::all(Family::V4, Direction::Inbound).with(Field::DestinationPort, &Intervals::one(80));
        let got = |port| {
            let before = vec![rule([to_port(port)], Action::Accept)];
            of(vec![nat(before, vec![])], Direction::Inbound, one.clone())
        };
        assert_eq!(got(80), ["ip nat PREROUTING 1: Accepted of to port 80"]);
        assert_eq!(
            got(81),
            ["ip nat PROXY_INIT_REDIRECT 1: Translated after of to port 80"]
        );
    }

    #[test]
    fn without_a_way_to_the_goal_nothing_is_reached_and_nothing_decided() {
        assert!(inbound(vec![]).is_empty());
        let only_hooked = table("ip nat", vec![prerouting(vec![]), redirecting()]);
        assert!(inbound(vec![only_hooked]).is_empty());
        // A chain of the same name in another table isn't the goal.
        for name in ["ip mine", "inet nat", "legacy ip nat"] {
            let mut other = table("ip nat", vec![prerouting(vec![any(jump(REDIRECT))]), redirecting()]);
            let of_name = table(name, vec![]);
            other.name = of_name.name;
            other.family = of_name.family;
            other.subsystem = of_name.subsystem;
            assert_eq!(
                inbound(vec![other]),
                [format!(
                    "{name} PROXY_INIT_REDIRECT 1: Translated of all TCP connections"
                )]
            );
        }
    }

    #[test]
    fn deep_jumps_are_followed_and_loops_end() {
        let deep = |depth: usize| {
            let link = |at: usize| {
                let next = if at == depth {
                    REDIRECT.to_owned()
                } else {
                    format!("c{}", at + 1)
                };
                chain(&format!("c{at}"), vec![any(jump(&next))])
            };
            let mut chains = vec![prerouting(vec![any(jump("c1"))]), redirecting()];
            chains.extend((1..=depth).map(link));
            inbound(vec![table("ip nat", chains)])
        };
        // The kernel's own limit, and this one's.
        assert_eq!(deep(16), ALL_WELL);
        assert_eq!(deep(31), ALL_WELL);
        assert_eq!(deep(32), ["ip nat c32 1: NotUnderstood perhaps of all TCP connections"]);

        let circle = vec![chain("a", vec![any(jump("b"))]), chain("b", vec![any(goto("a"))])];
        let got = inbound(vec![nat(vec![any(jump("a"))], circle)]);
        assert_eq!(got.len(), 2, "{got:?}");
        assert!(got[0].contains("NotUnderstood perhaps"), "{got:?}");
    }

    /// Sixteen levels of chains that jump to the next four times each would be four thousand million ways.
    #[test]
    fn too_many_ways_are_not_understood() {
        let level = |at: usize| {
            let next = format!("c{}", at + 1);
            chain(&format!("c{at}"), vec![any(jump(&next)); 4])
        };
        let mut chains = vec![prerouting(vec![any(jump("c1"))]), redirecting()];
        chains.extend((1..16).map(level));
        chains.push(chain("c16", vec![rule([to_port(80)], Action::Return)]));
        let got = inbound(vec![table("ip nat", chains)]);
        assert!(got.iter().any(|line| line.contains("NotUnderstood perhaps")), "{got:?}");
    }

    /// The ports of the connections that pass proxy-init's chain by, where each port has a rule of its own that accepts
    /// it, and how many decisions say so.
    fn accepted(ports: impl Iterator<Item = u16>) -> (usize, Vec<u128>) {
        let before = ports.map(|port| rule([to_port(port)], Action::Accept)).collect();
        let mut table = nat(before, vec![]);
        // Some more that nothing decides about, but that have been in proxy-init's chain.
        table.chains[1].rules.insert(0, rule([to_port(1001)], Action::Return));
        let found = Found {
            tables: vec![table],
            not_known: vec![],
        };
        let nat = &found.tables[0];
        let watched = Watched {
            table: nat,
            chain: REDIRECT,
        };
        let all = Connections::all(Family::V4, Direction::Inbound);
        let walk = there_and_back(
            &found,
            Family::V4,
            Direction::Inbound,
            all,
            &Surroundings::default(),
            Some(watched),
        );
        let decisions = walk
            .decisions
            .iter()
            .chain(&walk.arrived)
            .filter(|decision| decision.fate == Fate::Accepted && !decision.after_watched);
        let ports = decisions.clone().flat_map(|decision| {
            let ports = decision.connections.get(Field::DestinationPort).unwrap();
            ports
                .as_slice()
                .to_vec()
                .into_iter()
                .flat_map(|(first, last)| first..=last)
        });
        (decisions.clone().count(), ports.collect())
    }

    /// However many sets of connections there are, each connection that is taken is said to be.
    #[test]
    fn of_many_sets_no_connection_is_lost() {
        let even = |count: u16| (1..=count).map(|number| number * 2);
        let numbers = |count: u16| even(count).map(u128::from).collect::<Vec<_>>();
        assert_eq!(accepted(even(10)), (10, numbers(10)), "few are told apart");
        assert_eq!(accepted(even(40)), (1, numbers(40)), "many are not");
        assert_eq!(accepted(even(64)), (1, numbers(64)));
        assert_eq!(accepted(even(65)), (1, (2..=130).collect()), "nor those between them");
        // Each compared with all others, these would take minutes.
        let (decisions, ports) = accepted(even(30_000));
        assert_eq!(decisions, 1);
        assert!(numbers(30_000).iter().all(|port| ports.binary_search(port).is_ok()));
    }

    /// A field that would be in more than 64 pieces is kept whole: beyond that, results are over-approximated.
    #[test]
    fn of_many_intervals_no_connection_is_lost() {
        let every_second = |count: u128| {
            let list = (1..=count).map(|port| (port * 2, port * 2)).collect();
            Condition::is(Field::DestinationPort, Values::Listed(list))
        };
        let redirected = |condition| {
            let got = inbound(vec![nat(vec![rule([condition], Action::Drop)], vec![])]);
            let rest = got[1]
                .strip_prefix("ip nat PROXY_INIT_REDIRECT 1: Translated ")
                .unwrap()
                .replace("after of ", "");
            (got[0].clone(), rest)
        };
        let certain = "ip nat PREROUTING 1: Dropped of to port 2,4,6,8,10,12,14,16,...".to_owned();
        let odd = "to any port but 2,4,6,8,10,12,14,16,...".to_owned();
        let all = "all TCP connections".to_owned();
        // 63 holes leave 64 pieces, 64 leave 65.
        assert_eq!(redirected(every_second(63)), (certain.clone(), odd));
        assert_eq!(redirected(every_second(64)), (certain, all.clone()));
        let perhaps = "ip nat PREROUTING 1: Dropped perhaps of all TCP connections".to_owned();
        assert_eq!(redirected(every_second(65)), (perhaps, format!("perhaps {all}")));
    }
}
