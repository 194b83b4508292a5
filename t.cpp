#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <chrono>
#include "berth/plan.h"
#include "plan_instances.h"
using namespace berth;
// t INSTANCE seconds seed [capacity]
int main(int c,char**v){
  PlanProblem p; const char* what=v[1];
  if(!strncmp(what,"g:",2)){int n;double d;int s;sscanf(what+2,"%d:%lf:%d",&n,&d,&s);p=bench::guillotine_problem(n,d,s);}
  else if(!strncmp(what,"e:",2))p=bench::exponential_problem(atoi(what+2),1);
  else if(!strncmp(what,"h:",2))p=bench::heavy_tailed_problem(atoi(what+2),1);
  else p=*bench::read_problem(strlen(what)<=2?std::string("/work/shared/data/planner/")+what+".1048576.csv":std::string(what));
  double limit=atof(v[2]);int seed=atoi(v[3]);
  if(c>4){ if(atoll(v[4])>0)p.capacity=atoll(v[4]); else p.capacity.reset();}
  PlanOptions o{.time_limit=limit,.threads=1,.seed=(uint64_t)seed};
  bool verbose=c>5;
  o.progress=[&](const PlanProgress&n){ if(verbose)printf("   %.3f s work %lu best %lu bound %lu %.5f %.*s\n",n.seconds,n.work,n.best,n.lower_bound,1+n.gap,(int)n.strategy.size(),n.strategy.data());fflush(stdout);};
  auto r=plan(p,o);
  if(!r){printf("%s seed %d: none (%s)\n",what,seed,"");return 1;}
  if(auto x=validate(p,*r)){printf("INVALID %s\n",describe(x,p,*r).c_str());return 2;}
  printf("%s seed %d: %lu bound %lu %.5f in %.3f s work %lu %s\n",what,seed,r->size,r->lower_bound,1+r->gap(),r->seconds,r->work,r->strategy.c_str());
}
