; The threads of kernels: one pool for the whole process, in LLVM's language because kernels
; need no compiler but TVM's own.
;
; A launch is a job on its caller's stack. The caller links it into a list, wakes the workers
; and claims pieces itself; a worker claims pieces of any job that has unclaimed ones. Nobody
; waits for a worker that the system does not let run, unless it has claimed a piece. Each
; thread tries the piece of its own number first, so that pieces of successive launches meet
; the same caches. One lock guards the list, the number of workers, and the helpers of a job.
;
; A caller has to wait for a worker that the system takes off its core in the middle of a piece. If it would
; have been as fast alone, callers then do without workers for a pause, which grows while such waits take an
; eighth of the time.
;
; Where an OpenMP runtime shares its team, the thread that it belongs to launches there, and its
; members claim the pieces.

target datalayout = "e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:64-S128"
target triple = "x86_64-unknown-linux-gnu"

%Env = type { ptr, i32 }                                   ; TVMParallelGroupEnv
%Job = type { ptr, ptr, ptr, %Env, ptr, i32, i32, i32 }
; next, lambda, data, environment, a flag for each piece, claimed, helpers, failed

@lock = internal global [64 x i8] zeroinitializer, align 64   ; pthread_mutex_t
@work = internal global [64 x i8] zeroinitializer, align 64   ; pthread_cond_t: a job was posted
@done = internal global [64 x i8] zeroinitializer, align 64   ; pthread_cond_t: a job has no helpers
@jobs = internal global ptr null
@posted = internal global i32 0, align 64                      ; jobs so far
@workers = internal global i32 0, align 64                     ; threads that were started
@size = internal global i32 1                                  ; threads with the caller
@spins = internal global i32 0                                 ; pauses before a thread sleeps
@masks = internal global ptr null                              ; sets of CPUs, 128 bytes a thread
@raise = internal global ptr null                              ; TVMFFIErrorSetRaisedFromCStr
@team = internal global ptr null                               ; GOMP_parallel
@limit = internal global ptr null                              ; omp_get_max_threads
@member = internal global ptr null                             ; omp_get_thread_num
@owner = internal global i64 0                                 ; the thread that has the team
@pause = internal global i64 0                                 ; ticks without workers
@resume = internal global i64 0                                ; tick at which they end

@name = internal constant [10 x i8] c"amos-pool\00"
@kind = internal constant [13 x i8] c"RuntimeError\00"
@text = internal constant [34 x i8] c"a piece of a parallel loop failed\00"

declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i64 @pthread_self()
declare i32 @pthread_setname_np(i64, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @pthread_setaffinity_np(i64, i64, ptr)
declare void @llvm.x86.sse2.pause()
declare i64 @llvm.readcyclecounter()
declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.umin.i64(i64, i64)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

; Run pieces of a job until all are claimed, the piece of the thread's own number first.
define internal void @claim(ptr %job, i32 %thread) {
entry:
  %lambda.at = getelementptr %Job, ptr %job, i32 0, i32 1
  %data.at = getelementptr %Job, ptr %job, i32 0, i32 2
  %env = getelementptr %Job, ptr %job, i32 0, i32 3
  %count.at = getelementptr %Job, ptr %job, i32 0, i32 3, i32 1
  %flags.at = getelementptr %Job, ptr %job, i32 0, i32 4
  %claimed.at = getelementptr %Job, ptr %job, i32 0, i32 5
  %failed.at = getelementptr %Job, ptr %job, i32 0, i32 7
  %lambda = load ptr, ptr %lambda.at
  %data = load ptr, ptr %data.at
  %count = load i32, ptr %count.at
  %flags = load ptr, ptr %flags.at
  br label %each
each:
  %step = phi i32 [ 0, %entry ], [ %following, %next ]
  %more = icmp slt i32 %step, %count
  br i1 %more, label %try, label %end
try:
  %place = add i32 %thread, %step
  %piece = urem i32 %place, %count
  %flag = getelementptr i8, ptr %flags, i32 %piece
  %seen = load atomic i8, ptr %flag monotonic, align 1
  %open = icmp eq i8 %seen, 0
  br i1 %open, label %take, label %next
take:
  %before = atomicrmw xchg ptr %flag, i8 1 seq_cst
  %mine = icmp eq i8 %before, 0
  br i1 %mine, label %run, label %next
run:
  %others = atomicrmw add ptr %claimed.at, i32 1 seq_cst
  %status = call i32 %lambda(i32 %piece, ptr %env, ptr %data)
  %right = icmp eq i32 %status, 0
  br i1 %right, label %next, label %fail
fail:
  store atomic i32 1, ptr %failed.at seq_cst, align 4
  br label %next
next:
  %following = add i32 %step, 1
  br label %each
end:
  ret void
}

; Pause until a counter has another value than this one, or for so many pauses.
define internal void @spin(ptr %counter, i32 %value) {
entry:
  %most = load i32, ptr @spins
  br label %each
each:
  %step = phi i32 [ 0, %entry ], [ %following, %again ]
  %now = load atomic i32, ptr %counter seq_cst, align 4
  %same = icmp eq i32 %now, %value
  %more = icmp slt i32 %step, %most
  %both = and i1 %same, %more
  br i1 %both, label %again, label %end
again:
  call void @llvm.x86.sse2.pause()
  %following = add i32 %step, 1
  br label %each
end:
  ret void
}

; A thread of the pool; it never ends.
define internal ptr @worker(ptr %argument) {
entry:
  %wide = ptrtoint ptr %argument to i64
  %thread = trunc i64 %wide to i32
  call i32 @pthread_mutex_lock(ptr @lock)
  br label %search
search:                                                    ; the lock is held
  %first = load ptr, ptr @jobs
  br label %each
each:
  %job = phi ptr [ %first, %search ], [ %next, %skip ]
  %none = icmp eq ptr %job, null
  br i1 %none, label %idle, label %consider
consider:
  %claimed.at = getelementptr %Job, ptr %job, i32 0, i32 5
  %count.at = getelementptr %Job, ptr %job, i32 0, i32 3, i32 1
  %claimed = load atomic i32, ptr %claimed.at seq_cst, align 4
  %count = load i32, ptr %count.at
  %open = icmp slt i32 %claimed, %count
  br i1 %open, label %help, label %skip
skip:
  %next = load ptr, ptr %job
  br label %each
help:
  %helpers.at = getelementptr %Job, ptr %job, i32 0, i32 6
  %before = atomicrmw add ptr %helpers.at, i32 1 seq_cst
  call i32 @pthread_mutex_unlock(ptr @lock)
  call void @claim(ptr %job, i32 %thread)
  call i32 @pthread_mutex_lock(ptr @lock)
  ; The caller may return, and the job be gone, as soon as this is 0.
  %after = atomicrmw sub ptr %helpers.at, i32 1 seq_cst
  %last = icmp eq i32 %after, 1
  br i1 %last, label %tell, label %search
tell:
  call i32 @pthread_cond_broadcast(ptr @done)
  br label %search
idle:
  %seen = load atomic i32, ptr @posted seq_cst, align 4
  call i32 @pthread_mutex_unlock(ptr @lock)
  call void @spin(ptr @posted, i32 %seen)
  call i32 @pthread_mutex_lock(ptr @lock)
  br label %asleep
asleep:
  %now = load atomic i32, ptr @posted seq_cst, align 4
  %same = icmp eq i32 %now, %seen
  br i1 %same, label %sleep, label %search
sleep:
  call i32 @pthread_cond_wait(ptr @work, ptr @lock)
  br label %asleep
}

; Start the workers that are missing; the lock is held. Those that the system refuses are
; not tried again.
define internal void @start() {
entry:
  %id = alloca i64
  br label %each
each:
  %running = load i32, ptr @workers
  %number = add i32 %running, 1
  %size = load i32, ptr @size
  %more = icmp slt i32 %number, %size
  br i1 %more, label %create, label %end
create:
  %wide = zext i32 %number to i64
  %argument = inttoptr i64 %wide to ptr
  %status = call i32 @pthread_create(ptr %id, ptr null, ptr @worker, ptr %argument)
  %right = icmp eq i32 %status, 0
  br i1 %right, label %started, label %refused
started:
  %thread = load i64, ptr %id
  call i32 @pthread_setname_np(i64 %thread, ptr @name)
  store i32 %number, ptr @workers
  %sets = load ptr, ptr @masks
  %free = icmp eq ptr %sets, null
  br i1 %free, label %detach, label %bind
bind:
  %set = getelementptr [128 x i8], ptr %sets, i64 %wide
  call i32 @pthread_setaffinity_np(i64 %thread, i64 128, ptr %set)
  br label %detach
detach:
  call i32 @pthread_detach(i64 %thread)
  br label %each
refused:
  store i32 %number, ptr @size
  br label %end
end:
  ret void
}

; A member of an OpenMP team.
define internal void @join(ptr %job) {
  %number = load ptr, ptr @member
  %thread = call i32 %number()
  call void @claim(ptr %job, i32 %thread)
  ret void
}

; Take a wait for workers into account: those that are not bound to cores, and that the caller waits for
; about as long as their shares of the job would take it, or longer, have lost their core. Slow ones among
; many save time, as do the small cores of a CPU. Up to the wait the caller has run its own share.
define internal void @judge(i64 %posted, i64 %begun, i64 %end, i32 %shares) {
entry:
  %sets = load ptr, ptr @masks
  %free = icmp eq ptr %sets, null
  %own = sub i64 %begun, %posted
  %waited = sub i64 %end, %begun
  %half = lshr i64 %own, 1
  %workers = sub i32 %shares, 1
  %wide = zext i32 %workers to i64
  %alone = mul i64 %own, %wide
  %most = sub i64 %alone, %half
  %patience = add i64 %most, 1048576                       ; 0.3 to 0.5 ms
  %long = icmp ugt i64 %waited, %patience
  %late = and i1 %free, %long
  br i1 %late, label %leave, label %done
leave:
  %resumed = load atomic i64, ptr @resume monotonic, align 8
  %since = sub i64 %end, %resumed
  %eightfold = shl i64 %waited, 3
  %soon = icmp slt i64 %since, %eightfold
  %last = load atomic i64, ptr @pause monotonic, align 8
  %more = shl i64 %last, 2
  %fewer = lshr i64 %last, 2
  %new = select i1 %soon, i64 %more, i64 %fewer
  %least = call i64 @llvm.umax.i64(i64 %new, i64 8388608)    ; 3 ms
  %pause = call i64 @llvm.umin.i64(i64 %least, i64 1073741824) ; 0.4 s
  %resume = add i64 %end, %pause
  store atomic i64 %pause, ptr @pause monotonic, align 8
  store atomic i64 %resume, ptr @resume monotonic, align 8
  br label %done
done:
  ret void
}

; As TVMBackendParallelLaunch: run a lambda for each of so many pieces; 0 are one a thread.
define internal i32 @launch(ptr %lambda, ptr %data, i32 %pieces) {
entry:
  %size = load i32, ptr @size
  %any = icmp eq i32 %pieces, 0
  %count = select i1 %any, i32 %size, i32 %pieces
  %job = alloca %Job
  %flags = alloca i8, i32 %count
  %bytes = zext i32 %count to i64
  call void @llvm.memset.p0.i64(ptr %flags, i8 0, i64 %bytes, i1 false)
  %lambda.at = getelementptr %Job, ptr %job, i32 0, i32 1
  %data.at = getelementptr %Job, ptr %job, i32 0, i32 2
  %sync.at = getelementptr %Job, ptr %job, i32 0, i32 3, i32 0
  %count.at = getelementptr %Job, ptr %job, i32 0, i32 3, i32 1
  %flags.at = getelementptr %Job, ptr %job, i32 0, i32 4
  %claimed.at = getelementptr %Job, ptr %job, i32 0, i32 5
  %helpers.at = getelementptr %Job, ptr %job, i32 0, i32 6
  %failed.at = getelementptr %Job, ptr %job, i32 0, i32 7
  store ptr %lambda, ptr %lambda.at
  store ptr %data, ptr %data.at
  store ptr null, ptr %sync.at
  store i32 %count, ptr %count.at
  store ptr %flags, ptr %flags.at
  store i32 0, ptr %claimed.at
  store i32 0, ptr %helpers.at
  store i32 0, ptr %failed.at
  %one = icmp eq i32 %count, 1
  %single = icmp eq i32 %size, 1
  %alone = or i1 %one, %single
  br i1 %alone, label %serial, label %choose
serial:
  call void @claim(ptr %job, i32 0)
  br label %result
choose:
  %team = load ptr, ptr @team
  %own = icmp eq ptr %team, null
  br i1 %own, label %post, label %identify
identify:                                                  ; a runtime has one team a thread
  %self = call i64 @pthread_self()
  %owner = load i64, ptr @owner
  %owns = icmp eq i64 %self, %owner
  br i1 %owns, label %compare, label %post
compare:                                                   ; one of another size starts threads
  %limit = load ptr, ptr @limit
  %threads = call i32 %limit()
  %equal = icmp eq i32 %threads, %size
  br i1 %equal, label %share, label %post
share:
  call void %team(ptr @join, ptr %job, i32 %threads, i32 0)
  br label %result
post:
  %posted.at = call i64 @llvm.readcyclecounter()
  %resume = load atomic i64, ptr @resume monotonic, align 8
  %pausing = icmp ult i64 %posted.at, %resume
  br i1 %pausing, label %serial, label %share.out
share.out:
  call i32 @pthread_mutex_lock(ptr @lock)
  call void @start()
  %head = load ptr, ptr @jobs
  store ptr %head, ptr %job
  store ptr %job, ptr @jobs
  %number = atomicrmw add ptr @posted, i32 1 seq_cst
  call i32 @pthread_mutex_unlock(ptr @lock)
  call i32 @pthread_cond_broadcast(ptr @work)
  call void @claim(ptr %job, i32 0)
  call i32 @pthread_mutex_lock(ptr @lock)
  br label %search
search:
  %link = phi ptr [ @jobs, %share.out ], [ %here, %further ]
  %here = load ptr, ptr %link
  %found = icmp eq ptr %here, %job
  br i1 %found, label %unlink, label %further
further:                                                   ; a job begins with its link
  br label %search
unlink:
  %next = load ptr, ptr %job
  store ptr %next, ptr %link
  call i32 @pthread_mutex_unlock(ptr @lock)
  %begun = call i64 @llvm.readcyclecounter()
  br label %linger
linger:                                                    ; helpers still run their pieces
  %step = phi i32 [ 0, %unlink ], [ %following, %again ]
  %helpers = load atomic i32, ptr %helpers.at seq_cst, align 4
  %free = icmp eq i32 %helpers, 0
  br i1 %free, label %finished, label %patient
patient:
  %most = load i32, ptr @spins
  %more = icmp slt i32 %step, %most
  br i1 %more, label %again, label %wait
again:
  call void @llvm.x86.sse2.pause()
  %following = add i32 %step, 1
  br label %linger
wait:
  call i32 @pthread_mutex_lock(ptr @lock)
  br label %asleep
asleep:
  %busy = load atomic i32, ptr %helpers.at seq_cst, align 4
  %ended = icmp eq i32 %busy, 0
  br i1 %ended, label %awake, label %sleep
sleep:
  call i32 @pthread_cond_wait(ptr @done, ptr @lock)
  br label %asleep
awake:
  call i32 @pthread_mutex_unlock(ptr @lock)
  br label %finished
finished:
  %end.at = call i64 @llvm.readcyclecounter()
  %few = icmp slt i32 %count, %size
  %shares = select i1 %few, i32 %count, i32 %size
  call void @judge(i64 %posted.at, i64 %begun, i64 %end.at, i32 %shares)
  br label %result
result:
  %failed = load atomic i32, ptr %failed.at seq_cst, align 4
  %right = icmp eq i32 %failed, 0
  br i1 %right, label %end, label %fail
fail:
  %report = load ptr, ptr @raise
  call void %report(ptr @kind, ptr @text)
  br label %end
end:
  %status = sub i32 0, %failed
  ret i32 %status
}

; Begin anew, without workers: before the first launch, and in the child of a fork, which has
; neither the parent's threads nor what holds its lock.
define internal void @reset(i32 %size, i32 %spins, ptr %masks, ptr %raise) {
  call void @llvm.memset.p0.i64(ptr @lock, i8 0, i64 64, i1 false)
  call void @llvm.memset.p0.i64(ptr @work, i8 0, i64 64, i1 false)
  call void @llvm.memset.p0.i64(ptr @done, i8 0, i64 64, i1 false)
  store ptr null, ptr @jobs
  store i32 0, ptr @workers
  store i32 %size, ptr @size
  store i32 %spins, ptr @spins
  store ptr %masks, ptr @masks
  store ptr %raise, ptr @raise
  store ptr null, ptr @team
  store i64 0, ptr @resume
  ret void
}

; Launch in the OpenMP team of a thread from now on, where it has as many threads as the pool.
define internal void @adopt(ptr %team, ptr %limit, ptr %member, i64 %owner) {
  store ptr %limit, ptr @limit
  store ptr %member, ptr @member
  store i64 %owner, ptr @owner
  store atomic ptr %team, ptr @team seq_cst, align 8
  ret void
}

; What is called from outside, and TVM's function that returns where this table is.
@table = internal constant [3 x ptr] [ptr @launch, ptr @reset, ptr @adopt]

define i32 @__tvm_ffi_table(ptr %self, ptr %arguments, i32 %count, ptr %result) {
  %value.at = getelementptr i8, ptr %result, i64 8
  %address = ptrtoint ptr @table to i64
  store i64 1, ptr %result                                 ; kTVMFFIInt
  store i64 %address, ptr %value.at
  ret i32 0
}

!llvm.module.flags = !{!0}
!0 = !{i32 4, !"tvm_target", !"llvm"}
